"""The supervisor of a rank: exit codes, a rank that is killed, and its own death."""

import os
import re
import signal
import subprocess
import sys

import pytest

START = "import os, signal, time; from hdgemm.cli.supervisor import supervise; supervise()\n"


def started(code, size="2"):
    environment = os.environ | {"PMI_SIZE": size, "PMI_RANK": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", START + code],
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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_rank_ends_with_its_supervisor(number):
    with started("print('runs', flush=True); time.sleep(600)") as process:
        assert process.stdout.readline() == "runs\n"
        process.send_signal(number)
        # The pipe closes when both have ended.
        process.communicate(timeout=240)
