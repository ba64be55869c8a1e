"""Real processes under mpiexec: every grid, swap and broadcast; a rank that dies or fails."""

import importlib.util
import os
import re
import shutil
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
        capture_output=True, text=True, timeout=500, env=environment, check=False, **more,
    )  # fmt: skip


def test_every_variant_solves_the_system_on_every_grid():
    grids = ("1x1", "1x2", "2x1", "1x3", "3x1", "2x2")
    done = mpiexec(4, "-m", "mpi4py", "-m", "tests.hpl.mpi_child", *grids)
    assert done.stdout.splitlines() == ["ok"], done.stderr


def test_the_command_runs_under_mpiexec():
    done = mpiexec(2, "-m", "hdgemm", "linpack", "--n", "60", "--nb", "16", "--grid", "2x1,1x1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASSED") == 2


def test_an_error_of_one_rank_ends_all_and_names_it():
    done = mpiexec(2, "-m", "hdgemm", "linpack", "--n", "60", "--nb", "16", "--grid", "2x2")
    assert done.returncode != 0
    # Whichever finds it first ends both.
    assert re.search("rank [01] on .*: a grid of 2×2 needs 4 processes", done.stderr)


DYING = """
import os, signal
from hdgemm.cli.app import app
from hdgemm.hpl import devices
from hdgemm.hpl.communicator import world

update = devices.host_update

def dies(a, b, c):
    if world().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    update(a, b, c)

devices.host_update = dies
app(["linpack", "--n", "80", "--nb", "16", "--grid", "2x1", "--threads", "1"])
"""


def test_a_rank_that_is_killed_in_an_update_ends_the_command_and_is_named():
    done = mpiexec(2, "-c", DYING)
    assert done.returncode != 0
    process = re.search(r"hdgemm: rank 1 is process (\d+) on (\S+)", done.stderr)
    named = r"rank 1 on {1}: process {0} was ended by SIGKILL|rank 1 with PID {0} on node {1}"
    assert re.search(named.format(*process.groups()), done.stdout + done.stderr)


INJECTED = """
import time
import numpy as np
from hdgemm.errors import DoesNotFitError
from hdgemm.hpl import Settings, linpack, machine
from hdgemm.hpl.communicator import world
from hdgemm.hpl.devices import Devices
from hdgemm.hpl.window import host_update

here = world().rank == 1

def slow(a, b, c):
    time.sleep(0.005 * here)
    host_update(a, b, c)

def corrupted(a, b, c):
    host_update(a, b, c)
    if c.size:
        c[-1, -1] += 1.0 * here

def invalid(a, b, c):
    host_update(a, b, c)
    if here:
        c[-1:, -1:] = np.nan

for grid, threads in (((1, 2), 2), ((2, 1), 1)):
    for update in (slow, corrupted, invalid):
        result = linpack(Settings(90, 16, grid), devices=Devices([update] * threads, rows=32))
        if not here:
            print(update.__name__, result.passed)
# One thread on rank 0, two on rank 1.
uneven = Devices([host_update] * (1 + here), rows=32)
result = linpack(Settings(90, 16, (2, 1)), devices=uneven)
if not here:
    print("uneven", result.passed)
machine.available_bytes = lambda: 10**6 if here else 10**12
try:
    linpack(Settings(600, 16, (1, 2)))
except DoesNotFitError as error:
    assert error.missing == error.requested - 10**6
    refused = True
if all(world().collect(refused)) and not here:
    print("refused")
"""


def test_a_slow_rank_passes_a_wrong_block_fails_and_lacking_memory_is_refused_on_every_rank():
    done = mpiexec(2, "-m", "mpi4py", "-c", INJECTED)  # ends all ranks where one fails
    verdicts = ["slow True", "corrupted False", "invalid False"] * 2
    assert done.stdout.splitlines() == [*verdicts, "uneven True", "refused"], done.stderr


FAILING = """
import sys
from hdgemm.hpl import Settings, linpack
from hdgemm.hpl.communicator import world
from hdgemm.hpl.devices import Devices
from hdgemm.hpl.window import host_update

def failing(a, b, c):
    if world().rank == 1:
        raise ZeroDivisionError("the device is gone")
    host_update(a, b, c)

linpack(Settings(90, 16, (1, 2)), devices=Devices([failing] * int(sys.argv[1]), rows=32))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rank_whose_device_fails_ends_the_run_with_its_rank(threads):
    done = mpiexec(2, "-c", FAILING, str(threads))
    assert done.returncode != 0
    assert re.search("rank 1 on .*: the device is gone", done.stderr)
