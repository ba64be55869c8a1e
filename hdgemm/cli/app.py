"""The command line: its commands, exit codes and signals."""

from __future__ import annotations

import copy
import io
import logging
import re
import signal
import sys
import warnings
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

import hdgemm
from hdgemm.cli import factor, job, serve, token
from hdgemm.cli.examples import epilog, epilog_of
from hdgemm.errors import (
    CancelledRunError,
    DoesNotFitError,
    HdgemmError,
    InputError,
    missing_extra,
)
from hdgemm.routines.registry import commands, meant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Modules of this package, each with a `command` function of the module's name. They import
#: what they need inside that function: `hdgemm --help` must not wait for drivers or servers.
COMMANDS: Final = (
    "multiply",
    "plan",
    "devices",
    "verify",
    "random",
    "demo",
    "tune",
    "profile",
    "linpack",
)
SERVICE: Final[dict[str, Callable[..., None]]] = {
    "serve": serve.command,
    "worker": serve.worker,
    "token": token.command,
}
#: What a wrong command line raises; the public names of typer hold only this child of it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class _Sections(TyperGroup):
    """The list of commands, in sections. Rich, which makes them too, takes 200 ms to import."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - not needed
        """Write a section of the help for each panel that commands name."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                rows = sections.setdefault(_panel(command), [])
                rows.append((name, command.get_short_help_str(formatter.width)))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a command line; name the one that another word stands for."""
        shown = [name for name, command in self.commands.items() if not command.hidden]
        if args[0] not in self.commands and (name := meant(args[0], shown)) is not None:
            ctx.fail(f"No such command {args[0]!r}: use {name}.")
        return super().resolve_command(ctx, args)


def _panel(command: Any) -> str:
    """Return the section of a command; of one without, the first."""
    panel = command.rich_help_panel
    return panel if isinstance(panel, str) else "Commands"


app = typer.Typer(
    name="hdgemm",
    cls=_Sections,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # paragraphs are wrapped, not interpreted
    epilog=epilog(""),
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hdgemm {hdgemm.__version__}")
        raise typer.Exit


@app.callback()
def _about(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Dense linear algebra for matrices larger than memory: products, factorisations, solves.

    Sizes are written like 400MB, 1.5GB or 2GiB.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        return
    if context.invoked_subcommand in SERVICE:
        log_to_stderr(logging.INFO)
    else:  # services stop in their own order
        stop = _Stop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does
                signal.signal(number, stop)


class _Stopped(SystemExit):
    """SIGTERM or SIGHUP: raised in the main thread, so that unfinished files are removed."""


class _Stop:
    """Handler of SIGTERM and SIGHUP, and of the alarms that follow: raises `_Stopped`.

    While the error exists, files are being removed, which a second signal must not interrupt. A
    destructor, or the import of a compiled module, may swallow it: then it is raised again.
    """

    def __init__(self) -> None:
        self._number = 0
        self._raised: Callable[[], _Stopped | None] = lambda: None

    def __call__(self, number: int, _frame: object) -> None:
        """Raise `_Stopped`, unless it is on its way; look again after a second."""
        self._number = self._number or number
        signal.signal(signal.SIGALRM, self)
        signal.alarm(1)
        if self._raised() is None:
            raise self._error()  # no variable here: the traceback would keep the error alive

    def _error(self) -> _Stopped:
        error = _Stopped(128 + self._number)
        self._raised = weakref.ref(error)
        return error


for _name in COMMANDS:
    app.command(_name, epilog=epilog(_name))(import_module(f"hdgemm.cli.{_name}").command)
for _name, _routine in commands().items():
    app.command(_name, rich_help_panel="Linear algebra", epilog=epilog_of(_routine.examples))(
        factor.command_of(_routine)
    )
for _name, _service in SERVICE.items():
    app.command(_name, rich_help_panel="Job service", epilog=epilog(_name))(_service)
app.add_typer(job.app, rich_help_panel="Job service", epilog=epilog("job"))
_JOB_COMMANDS: Final[list[str]] = []
# The commands of `hdgemm job` keep their earlier names: submit, jobs, watch, cancel, fetch.
for _command in job.app.registered_commands:
    _function = _command.callback
    if _function is not None:
        _JOB_COMMANDS.append(_command.name or _function.__name__)
        _command.epilog = epilog(f"job {_JOB_COMMANDS[-1]}")
        app.command(_function.__name__, hidden=True, epilog=_command.epilog)(_function)


def app_for(words: Sequence[str]) -> typer.Typer:
    """Return the application with the one command that a command line names; `app` without one.

    typer makes all commands of an application before it runs one, which takes 30 ms for `app`.
    """
    named = [each for each in app.registered_commands if words and each.name == words[0]]
    if not named:
        return app
    found = copy.copy(app)
    found.registered_commands, found.registered_groups = named, []
    return found


def main() -> None:
    """Run the command line and exit with a code of docs/reference/cli.md."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # File names need not be text in the terminal's encoding.
            stream.reconfigure(errors="backslashreplace")
    log_to_stderr(logging.WARNING)
    warnings.showwarning = _warn
    try:
        exit_code = _run(sys.argv[1:])
    except _Stopped as stopped:
        _say(f"stopped by {signal.Signals(int(str(stopped.code)) - 128).name}{_kept()}")
        raise
    except KeyboardInterrupt:  # before typer handles it
        exit_code = CancelledRunError.exit_code
    except HdgemmError as error:
        _fail(_by_options(error), error.exit_code)
    except _UsageError as error:
        _fail(_usage(error), InputError.exit_code)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", InputError.exit_code)
    except MemoryError as error:
        _fail(f"out of memory: {error}; give a smaller --host-memory", DoesNotFitError.exit_code)
    except OSError as error:
        # Of errors that reach this line, those without a file are of standard output.
        where = error.filename or "cannot write the output"
        _fail(f"{where}: {error.strerror or error}", HdgemmError.exit_code)
    finally:
        signal.alarm(0)  # `_Stop`'s alarm: Python's shutdown has no handler
    if exit_code == CancelledRunError.exit_code:
        _say(f"interrupted{_kept()}")
    raise SystemExit(exit_code or 0)


def _run(words: Sequence[str]) -> Any:
    """Run the command that a command line names, and return its exit code."""
    try:
        return app_for(words)(prog_name="hdgemm", standalone_mode=False)
    except ImportError as error:
        if (missing := missing_extra(error, _command_line())) is None:
            raise
        raise missing from error


def _kept() -> str:
    """Return what to do after the end of a run with a journal, to append to a message."""
    return "; the same command goes on with the run" if "--checkpoint" in sys.argv else ""


def _usage(error: Any) -> str:
    """Say what is wrong with a command line, and which help says more."""
    command = _command_line() if error.ctx is None else error.ctx.command_path
    message = error.format_message().replace("Value error, ", "")  # pydantic's
    if re.fullmatch(r"-\d.*", number := getattr(error, "option_name", "")):
        message = f"{number} is read as an option; extents and sizes are not negative"
    if hasattr(error.__cause__, "errors"):
        value = error.__cause__.errors()[0]["input"]
        message = message.replace("Input should be", f"{value!r} is given, it must be")
        message = message.partition(", unable to parse")[0]
    if several := _several(error):
        message = message.removesuffix(".")
    return f"{message}{several}\nsee {command} --help"


def _several(error: Any) -> str:
    """Return how an option takes several values, for a wrong value of one, and for a word too many
    beside one.
    """
    given: list[Any] = [getattr(error, "param", None)]
    if "unexpected extra argument" in error.format_message():
        given = [each for each in error.ctx.command.params if {*each.opts} & {*sys.argv}]
    options = [each.opts[0] for each in given if getattr(each, "multiple", False)]
    return "".join(
        f"; {option} takes several values as {option} X {option} Y" for option in options
    )


def _by_options(error: HdgemmError) -> str:
    """Return a message; shapes of a product that do not fit are mended by options here."""
    if "a_shape" not in error.numbers:
        return str(error)
    return f"{str(error).partition('; transpose')[0]}; transpose one by --trans-a or --trans-b"


def _command_line() -> str:
    """Return the command of this process, without arguments."""
    known = (*COMMANDS, *commands(), *SERVICE)
    named = [name for name in sys.argv[1:2] if name in known]
    if sys.argv[1:2] == ["job"]:
        named = ["job", *(name for name in sys.argv[2:3] if name in _JOB_COMMANDS)]
    return " ".join(["hdgemm", *named])


def log_to_stderr(level: int) -> None:
    """Print what the library logs at this level or above; other libraries stay silent."""
    logger = logging.getLogger("hdgemm")
    handler = logging.StreamHandler()
    text = "%(asctime)s %(levelname)s" if level < logging.WARNING else "hdgemm: %(levelname)s:"
    handler.setFormatter(logging.Formatter(f"{text} %(message)s"))
    logger.handlers = [handler]
    logger.setLevel(level)


def _warn(message: Warning | str, *_rest: object, **_named: object) -> None:
    """Print a warning without the line of the program that it came from."""
    _say(f"warning: {message}")


def _say(text: str) -> None:
    sys.stderr.write(f"hdgemm: {text}\n")


def _fail(message: str, exit_code: int) -> NoReturn:
    _say(f"error: {message}")
    raise SystemExit(exit_code)
