"""The commands put together, and what their errors look like from outside."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final, NoReturn

import typer

from hdgemm.errors import DoesNotFitError, HdgemmError, InputError

#: Modules of this package, each with a `command` function of the module's name. They import
#: what they need inside that function: `hdgemm --help` must not wait for drivers or servers.
COMMANDS: Final = ("multiply", "plan", "devices", "verify", "random", "demo")

app = typer.Typer(
    name="hdgemm",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _about() -> None:
    """Multiply matrices larger than memory: C = alpha·op(A)·op(B) + beta·C, file to file.

    Sizes are written like 400MB, 1.5GB or 2GiB.
    """


for _name in COMMANDS:
    app.command(_name)(import_module(f"hdgemm.cli.{_name}").command)


def main() -> None:
    """Run the command line; exit with 0 done, 2 bad input, 3 does not fit, 130 interrupted."""
    try:
        app(prog_name="hdgemm")
    except HdgemmError as error:
        _fail(str(error), error.exit_code)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", InputError.exit_code)
    except MemoryError as error:
        _fail(f"out of memory: {error}; give a smaller --host-memory", DoesNotFitError.exit_code)
    except OSError as error:
        _fail(str(error), HdgemmError.exit_code)
    except SystemExit as leaving:
        if leaving.code == 130:
            _say("interrupted; what was to be written is not finished")
        raise


def _say(text: str) -> None:
    sys.stderr.write(f"hdgemm: {text}\n")


def _fail(message: str, exit_code: int) -> NoReturn:
    _say(f"error: {message}")
    raise SystemExit(exit_code)
