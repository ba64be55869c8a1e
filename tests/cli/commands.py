"""Commands run inside the test's process: quick, for what needs no process of its own."""

import signal
import sys
from typing import NamedTuple

from hdgemm.cli.app import main


class Done(NamedTuple):
    """How a command ended, with the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def command_line(monkeypatch, capsys):
    """A function that runs `hdgemm` with these arguments and leaves signals as they were."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["hdgemm", *map(str, arguments)])
        numbers = (signal.SIGTERM, signal.SIGHUP)
        handlers = [signal.getsignal(number) for number in numbers]
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
        finally:
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
        return Done(code or 0, *capsys.readouterr())

    return run
