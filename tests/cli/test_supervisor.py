"""The supervisor of a rank: exit codes, a rank that is killed, and its own death."""

import os
import re
import signal
import subprocess
import sys

import pytest

START = "import os, signal, time; from hdgemm.cli.supervisor import supervise; supervise()\n"


def started(code, size="2", pmi=()):
    environment = os.environ | {"PMI_SIZE": size, "PMI_RANK": "1"}
    if pmi:
        environment["PMI_FD"] = str(pmi[0])
    return subprocess.Popen(
        [sys.executable, "-c", START + code], pass_fds=pmi,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(("size", "same"), [("1", False), ("2", True)])
def test_a_rank_of_several_is_a_child_whose_exit_code_is_passed_on(size, same):
    process = started("print(os.getppid(), flush=True); os._exit(7)", size)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 7
    assert (int(printed) == process.pid) == same


def test_a_rank_that_is_killed_is_named():
    process = started("print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    printed, said = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGKILL
    assert re.search(rf"rank 1 on \S+: process {printed.strip()} was ended by SIGKILL", said)


def test_mpiexec_is_asked_to_end_all_ranks_where_one_was_killed():
    """By PMI's own command: it would not where the rank had not begun MPI."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as messages:
        process = started("os.kill(os.getpid(), signal.SIGKILL)", pmi=(writing,))
        os.close(writing)
        process.communicate(timeout=240)
        assert messages.read() == b"cmd=abort exitcode=137\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_ends_with_its_supervisor(number):
    with started("print('runs', flush=True); time.sleep(600)") as process:
        assert process.stdout.readline() == "runs\n"
        process.send_signal(number)
        # The pipe closes when both have ended.
        process.communicate(timeout=240)


def test_ranks_are_forked_before_numpy_is_imported():
    """OpenBLAS would start its threads again in the child, and these poll while A is read."""
    code = (
        "import sys, hdgemm.cli.supervisor as supervisor\n"
        "supervisor.supervise = lambda: print('numpy' in sys.modules) or sys.exit()\n"
        "from hdgemm.cli import main; main()"
    )
    words = ["solve", "A.npy", "B.npy", "--out", "X.npy", "--mpi"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"
