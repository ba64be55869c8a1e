"""Processes that hdgemm starts import nothing from the folder in which they are started."""

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hdgemm
from hdgemm.child_process import SAFE_PATH, child_command
from tests.opencl import usable_opencl

PACKAGE = Path(hdgemm.__file__).parent
SCRIPT = "from hdgemm.cli import main\nif __name__ == '__main__':\n    main()\n"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != SAFE_PATH} | {
    "PYTHONPATH": str(PACKAGE.parent)
}
#: Names whose use starts a Python process, by a regular expression.
STARTERS = (
    r"sys\.(executable|_base_executable)|os\.(exec\w+|spawn\w+|posix_spawnp?|system|popen)"
    r"|(dask|distributed)\.(LocalCluster|Nanny)|asyncio\.create_subprocess_\w+"
    r"|.*\b(ProcessPoolExecutor|get_context|set_executable)|multiprocessing\.(Process|Pool|Manager)"
)


@pytest.fixture
def folder(tmp_path):
    """A folder of matrices in which each module of Python, and each one installed, has a twin."""
    found = tmp_path / "matrices"
    found.mkdir()
    installed = {path.stem for path in Path(np.__file__).parents[1].iterdir() if path.is_dir()}
    program = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\nraise SystemExit(99)\n"
    for name in sys.stdlib_module_names | installed:
        if name.isidentifier() and name != "hdgemm":
            (found / f"{name}.py").write_text(program)
    for name in "AB":
        np.save(found / f"{name}.npy", np.eye(4))
    yield found
    ran = tmp_path / "ran"
    assert not ran.exists(), f"imported from the current folder: {ran.read_text()}"


@pytest.fixture
def script(tmp_path):
    """The command as an installation has it: a script, whose own folder is first on the path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hdgemm").write_text(SCRIPT)
    return [sys.executable, str(tmp_path / "bin/hdgemm")]


def run(folder, *command):
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def nodes():
    """Each node of the syntax of each module of the package, with the module's name."""
    return [
        (path.relative_to(PACKAGE).as_posix(), node)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute | ast.ImportFrom | ast.Constant)
    ]


def test_one_module_names_the_interpreter(nodes):
    found = {
        (path, name) for path, node in nodes for name in named(node) if re.fullmatch(STARTERS, name)
    }
    assert found == {
        ("child_process.py", "sys.executable"),
        ("cluster/connection.py", "dask.LocalCluster"),
    }


def named(node):
    """Return the names that a node takes from another module."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return [f"{node.value.id}.{node.attr}"]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_no_command_line_holds_the_name_of_an_interpreter(nodes):
    wrong = [
        f"{path}:{node.lineno}"
        for path, node in nodes
        if isinstance(node, ast.Constant) and node.value in {"-m", "-c"}
    ]
    assert not wrong, f"start Python by child_command: {wrong}"


def test_the_service_its_worker_its_planner_and_a_job(folder, script):
    from tests.server.harness import Live, environment, finished, make_settings, submit

    class Foreign(Live):
        def _start(self):
            command = [*script, "serve", "--port", str(self.port)]
            with (self.settings.data_dir / "serve.log").open("ab") as log:
                return subprocess.Popen(
                    command, cwd=folder, env=environment(self.settings) | ENVIRONMENT,
                    stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip

    settings = make_settings(
        folder.parent, library="hdgemm.server.hdgemm_backend:HdgemmLibrary", roots=(folder,)
    )
    settings.make_folders()
    with contextlib.closing(Foreign(settings)) as server:
        server.wait()
        inputs = {"a": {"path": "A.npy"}, "b": {"path": "B.npy"}}
        at = "/v1/processes/gemm/execution"
        planned = server.http.post(at, json={"inputs": inputs, "dry_run": True})
        assert planned.status_code == 200, planned.text
        assert finished(server.http, submit(server.http, **inputs))["status"] == "successful"


def test_the_workers_of_a_cluster_on_this_machine(folder, script):
    pytest.importorskip("distributed")
    run(folder, *script, "multiply", "A.npy", "B.npy", "--out", "C.npy", "--cluster", "local:1")
    np.testing.assert_array_equal(np.load(folder / "C.npy"), np.eye(4))


def test_a_cluster_on_this_machine_leaves_the_environment_as_it_was(monkeypatch):
    pytest.importorskip("distributed")
    from hdgemm.cluster.connection import local_cluster

    monkeypatch.delenv(SAFE_PATH, raising=False)
    with local_cluster(1, threads=1):
        assert os.environ[SAFE_PATH] == "1"
    assert SAFE_PATH not in os.environ


def test_tuning_of_an_opencl_device(folder):
    names = usable_opencl()
    request = {"shape": {"lanes": 2, "rows": 2}, "extents": [32, 32, 32], "repeats": 1}
    module = "hdgemm.pipeline.devices.opencl.tuning_process"
    done = subprocess.run(
        child_command(module, names[0], "float64"), cwd=folder, env=ENVIRONMENT,
        input=json.dumps(request) + "\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout), done.stderr


def test_python_m_takes_its_folder_off_the_path(tmp_path):
    (tmp_path / "typer.py").write_text("raise SystemExit('foreign')")
    assert run(tmp_path, sys.executable, "-m", "hdgemm", "--version").startswith("hdgemm ")


PROBE = "import hdgemm, sys\ndef main(): print(hdgemm.__file__, *sys.path, sep='\\n')\n"
PARENT = """
import subprocess
from hdgemm.child_process import child_command
subprocess.run(child_command("probe"), check=True)
"""


def test_a_child_has_the_path_of_the_environment_and_the_package_of_its_parent(
    tmp_path, monkeypatch
):
    # A checkout that is not installed: only the current folder holds the package.
    checkout, library = tmp_path / "checkout", tmp_path / "library"
    checkout.mkdir()
    library.mkdir()
    (checkout / "hdgemm").symlink_to(PACKAGE)
    (library / "probe.py").write_text(PROBE)
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", str(library))
    printed = run(checkout, sys.executable, "-c", PARENT).splitlines()
    assert Path(printed[0]).parents[1] == checkout
    assert str(library) in printed[1:]
