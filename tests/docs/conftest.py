"""Run the programs of a page as a reader would type them."""

import contextlib
import os
import shlex
import subprocess
import sys

import pytest

from tests.docs.pages import EXAMPLES, ROOT, blocks_of, script_of
from tests.ports import reserved_port

WAIT = """
import socket, sys, time
for attempt in range(4000):
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1).close()
        break
    except OSError:
        time.sleep(0.05)
else:
    sys.exit("the server does not answer")
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """A folder with the commands that a reader has installed."""
    folder = tmp_path_factory.mktemp("bin")
    for name, arguments in {
        "hdgemm": "-m hdgemm",
        "python": "",
        "wait-for-server": f"-c {shlex.quote(WAIT)}",
    }.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """The user's cache folder, of all pages: rates are measured and kernels compiled once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages-cache"


@pytest.fixture
def sandbox(tmp_path):
    """A folder with the example matrices that the pages take, made by the program of their page."""
    program = next(one.text for one in blocks_of(EXAMPLES) if "np.save" in one.text)
    with contextlib.chdir(tmp_path):
        exec(program, {})
    return tmp_path


@pytest.fixture
def run_page(commands, cache, tmp_path_factory):
    """Return a function that runs the programs of a page in a folder."""

    def run(page, folder, replaced=None):
        environment = {
            **os.environ,
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(cache),
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HDGEMM_DATA_DIR": str(tmp_path_factory.mktemp("service")),
            "HDGEMM_JOB_NICENESS": "0",
            "MPLBACKEND": "agg",
        }
        environment.pop("HDGEMM_TOKEN", None)
        with reserved_port() as port:
            script = script_of(page, port)
            for shown, taken in (replaced or {}).items():
                script = script.replace(shown, taken)
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )
        assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
        assert "Traceback" not in done.stderr

    return run
