"""Commands run inside the test's process: quick, for what needs no process of its own."""

import sys
from typing import NamedTuple

from hdgemm.cli.app import main


class Done(NamedTuple):
    """How a command ended, with the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def command_line(monkeypatch, capsys):
    """A function that runs `hdgemm` with these arguments."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["hdgemm", *map(str, arguments)])
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
        return Done(code or 0, *capsys.readouterr())

    return run
