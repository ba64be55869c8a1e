"""Ctrl-C: exit code 130, no half-written C under any name, nothing else touched."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hdgemm import CancelledRunError, Options, multiply
from hdgemm.pipeline.devices.registry import list_devices
from tests.child import HEARS_SIGNALS
from tests.run.folder import N, contents

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
MAIN = f"{HEARS_SIGNALS}\nfrom hdgemm.cli.app import main\nmain()"
#: Tiles so small that the run would take half a minute.
SLOW = ("--tile", "16,16,16", "--host-memory", "200MB", "--device", "host")


def interrupted(folder, *arguments, ready, by=signal.SIGINT):
    """Start `hdgemm multiply`, interrupt it once `ready`, and return its exit code and errors."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "multiply", *arguments, *SLOW],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        deadline = time.monotonic() + 240
        while not ready(process) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        # Into the run: its lanes are up, and some tiles are stored.
        time.sleep(0.2)
        assert process.poll() is None, process.stderr.read()
        process.send_signal(by)
        errors = process.communicate(timeout=240)[1]
    finally:
        process.kill()
        process.wait()
    return process.returncode, errors


def part_file(folder):
    """Return a function that tells whether a process has begun to write an output."""

    def ready(process):
        opened = Path(f"/proc/{process.pid}/fd")
        try:
            names = [os.fspath(path.readlink()) for path in opened.iterdir()]
        except OSError:
            return False
        unnamed = any(name.startswith(f"{folder}/#") for name in names)
        return unnamed or any(path.suffix == ".part" for path in folder.rglob("*"))

    return ready


@pytest.mark.parametrize(
    ("out", "by", "code", "words"),
    [
        ("d.npy", signal.SIGINT, 130, "interrupted"),
        ("d.npy", signal.SIGTERM, 143, "stopped by SIGTERM"),
        ("d.zarr::group/D", signal.SIGINT, 130, "interrupted"),
        ("d.zarr::group/D", signal.SIGHUP, 129, "stopped by SIGHUP"),
        ("d.h5::D", signal.SIGTERM, 143, "stopped by SIGTERM"),
    ],
)
def test_a_new_file_does_not_appear(matrices, out, by, code, words):
    before = contents(matrices)
    found, errors = interrupted(
        matrices, "a.npy", "b.npy", "--out", out, ready=part_file(matrices), by=by
    )
    assert found == code
    assert words in errors
    assert "Traceback" not in errors
    assert contents(matrices) == before


@pytest.mark.parametrize("out", ["d.npy", f"d.bin::{N}x{N}:float64", "a.npy"])
def test_a_killed_process_leaves_nothing(matrices, out):
    before = contents(matrices)
    code, _ = interrupted(
        matrices, "c.npy", "b.npy", "--out", out, ready=part_file(matrices), by=signal.SIGKILL
    )
    assert code == -signal.SIGKILL
    assert contents(matrices) == before


def test_a_draft_that_a_checkpoint_keeps_survives_sigterm(matrices):
    journal = matrices / ".d.npy.hdgemm-journal"
    code, _ = interrupted(
        matrices, "a.npy", "b.npy", "--out", "d.npy", "--checkpoint",
        ready=lambda _: journal.exists() and b'"done"' in journal.read_bytes(), by=signal.SIGTERM,
    )  # fmt: skip
    assert code == 143
    assert list(matrices.glob(".d.npy.*.part"))
    assert journal.exists()


@pytest.mark.parametrize("beta", ["0", "1"])
def test_the_file_that_was_to_be_replaced_is_left_as_it_was(matrices, beta):
    before = contents(matrices)
    arguments = ("a.npy", "b.npy", "--c", "c.npy", "--beta", beta, "--out", "c.npy")
    code, _ = interrupted(matrices, *arguments, ready=part_file(matrices))
    assert code == 130
    assert contents(matrices) == before


@pytest.mark.filterwarnings("ignore:the product is expected to take")
def test_cancelling_from_another_thread(matrices):
    before = contents(matrices)
    cancel, begun = threading.Event(), threading.Event()

    def observe(event):
        begun.set()

    def stop():
        begun.wait(240)
        cancel.set()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(CancelledRunError):
        multiply(
            matrices / "a.npy", matrices / "b.npy", out=matrices / "d.npy",
            options=Options(devices="host", tile=(16, 16, 16)), observer=observe, cancel=cancel,
        )  # fmt: skip
    stopper.join()
    assert contents(matrices) == before


def test_ctrl_c_in_a_program(matrices):
    """KeyboardInterrupt reaches the caller once; lanes, threads and files are gone by then."""
    program = f"""
{HEARS_SIGNALS}
import os, signal, threading, hdgemm
def observe(event):
    if event.stage == "store2":
        os.kill(os.getpid(), signal.SIGINT)
try:
    hdgemm.multiply({str(matrices / "a.npy")!r}, {str(matrices / "b.npy")!r},
        out={str(matrices / "d.npy")!r}, observer=observe,
        options=hdgemm.Options(devices="host", tile=(16, 16, 64)))
except KeyboardInterrupt:
    print("interrupted", [t.name for t in threading.enumerate() if "lane" in t.name])
"""
    before = contents(matrices)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.stdout == "interrupted []\n", done.stderr
    assert contents(matrices) == before


ENDING = """
import sys, threading, time
import hdgemm

device, out = sys.argv[1:]
options = hdgemm.Options(devices=device, tile=(32, 32, 32), host_memory="200MB")
stored = threading.Event()

def observe(event):
    if event.stage == "store2":
        stored.set()
        time.sleep(0.05)  # 256 times

keywords = {"out": out, "options": options, "observer": observe}
threading.Thread(None, hdgemm.multiply, None, ("a.npy", "b.npy"), keywords, daemon=True).start()
stored.wait()
"""


@pytest.mark.parametrize("device", [info.name for info in list_devices() if info.usable])
def test_a_program_that_ends_before_its_daemon_thread(matrices, device):
    """The driver of PoCL aborted the process, and the draft stayed."""
    before = contents(matrices)
    done = subprocess.run(
        [sys.executable, "-c", ENDING, device, "x.h5::C"], cwd=matrices, env=ENVIRONMENT,
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert contents(matrices) == before
