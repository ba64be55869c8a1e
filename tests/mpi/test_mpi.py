"""Real processes under mpiexec: every grid, swap and broadcast; a rank that dies or fails."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from hdgemm.errors import InputError
from hdgemm.mpi.communicator import Mpi, world
from tests.mpi.ranks import CASES, MPIEXEC, mpiexec, ranks_of

pytestmark = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason="mpi4py or mpiexec is missing: pip install 'hdgemm[mpi]' mpich",
)


@pytest.mark.parametrize(("mpi", "grids"), CASES)
def test_every_variant_solves_the_system_on_every_grid(mpi, grids):
    done = mpiexec(ranks_of(grids), "-m", "mpi4py", "-m", "tests.mpi.mpi_child", *grids, mpi=mpi)
    assert done.stdout.splitlines() == ["ok"], done.stderr


def test_the_examples_of_docstrings_run(tmp_path):
    a = np.random.default_rng(0).random((100, 100))
    np.save(tmp_path / "A.npy", a @ a.T + 100 * np.eye(100))
    np.save(tmp_path / "B.npy", a[:, :3])
    done = mpiexec(2, "-m", "mpi4py", "-m", "tests.mpi.examples_child", str(tmp_path))
    assert done.stdout.splitlines() == ["ok"], done.stderr


def test_each_group_is_freed_once_with_the_groups_that_were_split_from_it():
    freed = []

    def comm(name):
        return SimpleNamespace(
            rank=0,
            size=1,
            Split=lambda color, key: comm(f"{name}{color}"),
            Free=lambda: freed.append(name),
        )

    whole = Mpi(comm("w"))
    first = whole.split(1, 0)
    whole.split(2, 0)
    first.split(3, 0)
    first.free()
    assert freed == ["w13", "w1"]
    whole.free()
    assert freed == ["w13", "w1", "w2", "w"]


def test_the_command_runs_under_mpiexec():
    done = mpiexec(2, "-m", "hdgemm", "linpack", "--n", "60", "--nb", "16", "--grid", "2x1,1x1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASSED") == 2


def test_ranks_with_other_parameters_or_another_version_are_refused():
    command = ["-m", "hdgemm", "linpack", "--nb", "16", "--grid", "2x1", "--n"]
    done = mpiexec(1, *command, "60", ":", "-n", "1", sys.executable, *command, "90")
    assert done.returncode != 0
    assert re.search("--n is '60' on rank 0 and '90' on rank 1 on ", done.stderr), done.stderr
    assert "PASSED" not in done.stdout


COMPARED = """
import sys
from dataclasses import replace
import hdgemm
from hdgemm.errors import InputError
from hdgemm.mpi.linpack import Settings, linpack
from hdgemm.mpi.communicator import world
from hdgemm.mpi.devices import Devices

own, here = Settings(60, 16, (2, 1)), world().rank == 1
different = [dict(n=90), dict(nb=8), dict(depth=0), dict(swap="binary-exchange"), dict(strip=8),
             dict(mapping="column"), dict(broadcast="long"), dict(overlap=()), dict(seed=1)]
calls = [(replace(own, **(values if here else {})), {}) for values in different]
calls += [(own, {"mixed": here}), (own, {"devices": Devices() if here else None})]
for settings, more in calls:
    try:
        linpack(settings, **more)
    except InputError as error:
        assert "on rank 1 on" in str(error), error
    else:
        raise AssertionError((settings, more))
if here:
    hdgemm.__version__ = "0.0.1"
try:
    linpack(own)
except InputError as error:
    if here:
        print(error)
"""


def test_linpack_compares_parameters_and_versions_of_all_ranks():
    done = mpiexec(2, "-m", "mpi4py", "-c", COMPARED)
    assert done.returncode == 0, done.stderr
    assert re.match("hdgemm's version is '.*' on rank 0 and '0.0.1' on rank 1 on ", done.stdout)


BLOCKED = """
import sys, threading, time
from hdgemm.cli.app import main
from hdgemm.mpi.communicator import Mpi

gather = Mpi.gather

def tell():
    \"\"\"Print when the main thread stays at one instruction of `gather`.\"\"\"
    places = []
    while len(places) < 20 or set(places[-20:]) != {("gather", places[-1][1])}:
        time.sleep(0.02)
        frame = sys._current_frames()[threading.main_thread().ident]
        places.append((frame.f_code.co_name, frame.f_lasti))
    print("blocked", flush=True)

def waiting(self, row, out=None):
    if self.rank == 1:
        threading.Event().wait()
    threading.Thread(target=tell, daemon=True).start()
    return gather(self, row, out)

Mpi.gather = waiting
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.ci
def test_a_rank_that_waits_for_another_one_ends_after_a_signal(number):
    command = [MPIEXEC, "-n", "2", sys.executable, "-c", BLOCKED, "linpack", "--n", "60", "--nb",
               "16", "--grid", "2x1", "--threads", "1"]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            line = next(line for line in running.stderr if "rank 0 is process" in line)
            assert next(running.stdout) == "blocked\n"
            os.kill(int(line.split()[5]), number)
            errors = running.communicate(timeout=240)[1]
        finally:
            running.kill()
    assert running.returncode != 0
    assert f"ended by {number.name}" in errors


BEGINNING = """
import ctypes
from hdgemm.cli.app import main
from hdgemm.mpi import communicator

def waits_for_others():
    print("begins", flush=True)
    ctypes.PyDLL(None).pause()  # holds the interpreter's lock, as MPI_Init does

communicator.world = waits_for_others
main()
"""


def test_a_rank_ends_after_a_signal_while_another_one_has_not_begun():
    command = [sys.executable, "-c", BEGINNING, "linpack", "--n", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert next(running.stdout) == "begins\n"
        running.terminate()
    assert running.returncode == -signal.SIGTERM


def test_several_ranks_of_a_launcher_that_mpi_does_not_know_are_refused(monkeypatch):
    monkeypatch.setattr("mpi4py.MPI.COMM_WORLD", SimpleNamespace(size=1))
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    # A batch script is one process of an allocation for several.
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert world().size == 1
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(InputError, match="srun started 4 processes"):
        world()
    # mpiexec, which Slurm started once for each machine.
    monkeypatch.setenv("PMI_SIZE", "1")
    assert world().size == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(InputError, match="mpiexec started 2 processes"):
        world()


def test_an_error_of_one_rank_ends_all_and_names_it():
    done = mpiexec(2, "-m", "hdgemm", "linpack", "--n", "60", "--nb", "16", "--grid", "2x2")
    assert done.returncode != 0
    # Whichever finds it first ends both.
    assert re.search("rank [01] on .*: a grid of 2×2 needs 4 processes", done.stderr)


DYING = """
import os, signal
from hdgemm.cli.app import app
from hdgemm.mpi import devices
from hdgemm.mpi.communicator import world

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
from hdgemm.mpi import machine
from hdgemm.mpi.linpack import Settings, linpack
from hdgemm.mpi.communicator import world
from hdgemm.mpi.devices import Devices
from hdgemm.mpi._window import host_update

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
from hdgemm.mpi.linpack import Settings, linpack
from hdgemm.mpi.communicator import world
from hdgemm.mpi.devices import Devices
from hdgemm.mpi._window import host_update

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
