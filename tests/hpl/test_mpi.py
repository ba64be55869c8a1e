"""Real processes under mpiexec: every grid, swap and broadcast; a rank that dies or fails."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")

pytestmark = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason="mpi4py or mpiexec is missing: pip install 'hdgemm[mpi]' mpich",
)


def mpiexec(count, *arguments, **more):
    # One BLAS thread for each process: several would wait for each other on a small machine.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [MPIEXEC, "-n", str(count), sys.executable, *arguments],
        capture_output=True, text=True, timeout=240, env=environment, check=False, **more,
    )  # fmt: skip


@pytest.mark.parametrize(("p", "q"), [(1, 2), (2, 1), (2, 2), (1, 3), (3, 1)])
def test_every_variant_solves_the_system_on_a_grid(p, q):
    done = mpiexec(p * q, "-m", "mpi4py", "-m", "tests.hpl.mpi_child", str(p), str(q))
    assert done.stdout.splitlines() == ["ok"], done.stderr


def test_the_command_runs_under_mpiexec():
    done = mpiexec(2, "-m", "hdgemm", "linpack", "--n", "60", "--nb", "16", "--grid", "2x1,1x2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASSED") == 2


def test_an_error_of_one_rank_ends_all_and_names_it():
    done = mpiexec(2, "-m", "hdgemm", "linpack", "--n", "60", "--nb", "16", "--grid", "2x2")
    assert done.returncode != 0
    # Whichever finds it first ends both.
    assert re.search("rank [01] on .*: a grid of 2×2 needs 4 processes", done.stderr)


def test_a_rank_that_is_killed_ends_the_command_and_is_named_by_its_process():
    command = ["-m", "hdgemm", "linpack", "--n", "6000", "--nb", "64", "--grid", "1x2"]
    with subprocess.Popen(
        [MPIEXEC, "-n", "2", sys.executable, *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    ) as running:  # fmt: skip
        told = (
            re.match(r"hdgemm: rank 1 is process (\d+) on \S+", line) for line in running.stdout
        )
        process = next(match.group(1) for match in told if match)
        os.kill(int(process), signal.SIGKILL)
        rest = running.stdout.read()
        assert running.wait(100) != 0
    assert f"PID {process} " in rest


DYING = """
import os, signal
from hdgemm.hpl import Settings, linpack
from hdgemm.hpl.communicator import world
from hdgemm.hpl.devices import Devices
from hdgemm.hpl.window import host_update

def update(a, b, c):
    if world().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    host_update(a, b, c)

linpack(Settings(80, 16, (2, 1)), devices=Devices([update]))
"""


def test_a_rank_that_is_killed_ends_the_run():
    done = mpiexec(2, "-c", DYING)
    assert done.returncode != 0


INJECTED = """
import sys, time
from hdgemm.hpl import Settings, linpack
from hdgemm.hpl.communicator import world
from hdgemm.hpl.devices import Devices
from hdgemm.hpl.window import host_update

def slow(a, b, c):
    if world().rank == 1:
        time.sleep(0.005)
    host_update(a, b, c)

def corrupted(a, b, c):
    host_update(a, b, c)
    if world().rank == 1 and c.size:
        c[-1, -1] += 1.0

def failing(a, b, c):
    if world().rank == 1:
        raise ZeroDivisionError("the device is gone")
    host_update(a, b, c)

p, q, threads = map(int, sys.argv[2:])
update = {"slow": slow, "corrupted": corrupted, "failing": failing}[sys.argv[1]]
result = linpack(Settings(90, 16, (p, q)), devices=Devices([update] * threads, rows=32))
if world().rank == 0:
    print("PASSED" if result.passed else "FAILED")
"""


@pytest.mark.parametrize(("p", "q", "threads"), [(1, 2, 2), (2, 1, 1)])
@pytest.mark.parametrize(("what", "verdict"), [("slow", "PASSED"), ("corrupted", "FAILED")])
def test_a_slow_rank_passes_and_a_corrupted_block_fails(p, q, threads, what, verdict):
    done = mpiexec(2, "-c", INJECTED, what, str(p), str(q), str(threads))
    assert done.stdout.split() == [verdict], done.stderr


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rank_whose_device_fails_ends_the_run_with_its_rank(threads):
    done = mpiexec(2, "-c", INJECTED, "failing", "1", "2", str(threads))
    assert done.returncode != 0
    assert re.search("rank 1 on .*: the device is gone", done.stderr)


LACKING = """
import os
import hdgemm.hpl.benchmark as benchmark
from hdgemm.errors import DoesNotFitError
from hdgemm.hpl import Settings
from hdgemm.hpl.communicator import world

benchmark.available_bytes = lambda: 10**6 if world().rank == 1 else 10**12
try:
    benchmark.linpack(Settings(600, 16, (1, 2)))
except DoesNotFitError as error:
    line = f"{world().rank} {error.missing == error.requested - 10**6}\\n"
    os.write(1, line.encode())  # at once: ranks write beside one another
"""


def test_memory_that_one_rank_lacks_is_refused_on_every_rank():
    done = mpiexec(2, "-c", LACKING)
    assert sorted(done.stdout.splitlines()) == ["0 True", "1 True"], done.stderr
