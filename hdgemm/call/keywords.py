"""Keywords that every call takes: their types, their documentation, and the value they become."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypedDict, TypeVar, cast

from hdgemm.call.array_library import in_callers_library
from hdgemm.errors import InputError
from hdgemm.progress import Callbacks
from hdgemm.progress_view import shows_progress
from hdgemm.unknown_keywords import unknown_keyword

if TYPE_CHECKING:
    import os
    import threading
    from collections.abc import Callable
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from hdgemm.durable.place import Checkpointing
    from hdgemm.matrices.location import Location
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback, ReportCallback
    from hdgemm.run.session import Session

    #: The location of a stored matrix: a path, its text, or a parsed location.
    Where: TypeAlias = str | os.PathLike[str] | Location
    #: An operand that gives an array of NumPy where there is no `out`.
    Source: TypeAlias = NDArray[Any] | Where | StoredMatrix
    #: A result at the location of a file.
    Stored: TypeAlias = NDArray[Any] | StoredMatrix
    #: The place of one of several results; None for a new array.
    Place: TypeAlias = NDArray[Any] | StoredMatrix | Where | None

#: A dtype that the result keeps, and a matrix that the result is written into.
Element = TypeVar("Element", "np.float32", "np.float64", "np.complex64", "np.complex128")
Out = TypeVar("Out", bound="Writable")
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Writable(Protocol):
    """A matrix that C is written into: an array, a memmap, a stored matrix, a dataset."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""

    @property
    def dtype(self) -> Any:
        """Type of its elements."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


class RunKeywords(TypedDict, total=False):
    """Keywords of every call that computes."""

    options: Options | None
    session: Session | None
    progress: ProgressCallback | bool | None
    observer: Observer | None
    cancel: threading.Event | None


class ReportKeywords(RunKeywords, total=False):
    """Keywords of a call that returns its result and reports beside it."""

    report: ReportCallback | None


class DurableKeywords(ReportKeywords, total=False):
    """Keywords of a call that can go on after an interruption."""

    checkpoint: Checkpointing
    restart: bool


class ProductKeywords(RunKeywords, total=False):
    """Keywords of a durable product, whose report is what `hdgemm.multiply` returns."""

    checkpoint: Checkpointing
    restart: bool


class ClusterKeywords(TypedDict, total=False):
    """Keywords of a durable call on a cluster, whose workers have sessions of their own."""

    options: Options | None
    progress: ProgressCallback | bool | None
    observer: Observer | None
    cancel: threading.Event | None
    checkpoint: Checkpointing
    restart: bool


class ExecuteKeywords(TypedDict, total=False):
    """Keywords of a call whose plan has the options already."""

    session: Session | None
    progress: ProgressCallback | bool | None
    observer: Observer | None
    cancel: threading.Event | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call as its keywords describe it.

    Parameters
    ----------
    options, session
        As the caller gave them; None for the session's options, and for a session of this call.
    callbacks
        Observer, progress callback, cancel event and report callback of the caller.
    checkpoint, restart
        The journal that the call keeps, and whether an earlier run is discarded.
    """

    options: Options | None = None
    session: Session | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)
    checkpoint: Checkpointing = False
    restart: bool = False

    @classmethod
    def of(
        cls,
        *,
        options: Options | None = None,
        session: Session | None = None,
        progress: ProgressCallback | bool | None = None,
        observer: Observer | None = None,
        cancel: threading.Event | None = None,
        report: ReportCallback | None = None,
        checkpoint: Checkpointing = False,
        restart: bool = False,
    ) -> Call:
        """Return the call that these keywords describe.

        Raises
        ------
        InputError
            For `restart` without the checkpoint that it discards.
        """
        if restart and not checkpoint:
            raise InputError("restart goes with checkpoint: only a journal can be begun again")
        callbacks = Callbacks.of(progress, observer, cancel, report)
        return cls(options, session, callbacks, checkpoint, restart)

    def keywords(self, *, durable: bool) -> dict[str, Any]:
        """Return the keywords that describe this call, as a public function takes them."""
        found: dict[str, Any] = {
            "options": self.options,
            "session": self.session,
            "progress": self.callbacks.progress,
            "observer": self.callbacks.observer,
            "cancel": self.callbacks.cancel,
            "report": self.callbacks.report,
        }
        return (
            found | {"checkpoint": self.checkpoint, "restart": self.restart} if durable else found
        )


#: What the documentation of a public function says of each keyword.
_DOCUMENTED: Final = {
    "comm": "Communicator of mpi4py; None for all processes that mpiexec started.",
    "grid": 'Rows and columns of the grid of processes, ``(2, 4)`` or ``"2x4"``; None for the\n'
    "squarest one of all processes. The first ranks take part, the others return None.",
    "nb": "Rows and columns of a block; None for 192.",
    "options": "Memory, devices, tiles; see `Options`. None: the session's, or the defaults.",
    "session": "Opened devices, kept from call to call; see `Session`. None opens them for this\n"
    "call.",
    "progress": "Called with snapshots of the run (`hdgemm.Progress`); True shows a bar\n"
    "on standard error, or in the notebook.",
    "observer": "Called with each event of the run.",
    "cancel": "Set it to stop the run after at most one operation per stage.",
    "report": "Called with the run's `Report` when the result is complete;\n"
    "``report=reports.append`` collects it.",
    "checkpoint": "Keep a journal beside the result (or at this path), so that the same call goes\n"
    "on after a crash; at most one piece of the result is computed again. The result must be a\n"
    "file.",
    "restart": "Discard what an earlier run left, and begin again.",
}
#: The parameter that stands for all keywords in a docstring, with its description.
_KEYWORDS: Final = re.compile(r"^( *)\*\*keywords\n(?:\1 +.*\n)*", re.MULTILINE)


def public_call(
    kind: type, *, callers_arrays: bool = False, **defaults: Any
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function with ``**keywords`` of some kind a public call.

    The signature and the documentation that `help` shows name each keyword; for ``progress=True``
    see `shows_progress`.

    Parameters
    ----------
    kind
        The typed dictionary of the keywords.
    callers_arrays
        Return arrays of the operands' library; see `in_callers_library`.
    **defaults
        Values of keywords that are not given, where they differ from `Call`'s.
    """
    # A child has its parent's keywords in `__annotations__`, too.
    shown_defaults = {"checkpoint": False, "restart": False, **defaults}
    names = tuple(kind.__annotations__)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        # A generator hands its keywords to the call that runs while it is consumed.
        generates = inspect.isgeneratorfunction(function)
        viewed = function if generates else shows_progress(function)

        @wraps(function)
        def call(*args: _P.args, **keywords: _P.kwargs) -> _R:
            if keywords.keys() - known:
                raise unknown_keyword(function.__name__, keywords, known)
            result = viewed(*args, **{**defaults, **keywords})
            if callers_arrays:
                return cast("_R", in_callers_library(result, args, keywords))
            return result

        given = inspect.signature(function)
        own = [p for p in given.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=shown_defaults.get(name),
                annotation=_annotation(kind.__annotations__[name]),
            )
            for name in names
        ]
        known = {p.name for p in (*own, *shown)}
        call.__signature__ = given.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        call.__doc__ = _with_keywords(function.__doc__ or "", names)
        return call

    return decorate


def _annotation(annotation: Any) -> Any:
    """Return the text of a forward reference."""
    return getattr(annotation, "__forward_arg__", annotation)


def _with_keywords(text: str, names: tuple[str, ...]) -> str:
    """Replace the entry of ``**keywords`` in a docstring by one for each keyword that has none."""
    match = _KEYWORDS.search(text)
    if match is None:
        return text
    indent = match[1]
    own = {
        name.strip()
        for entry in re.findall(rf"^{indent}(\w[\w, ]*)$", text, re.MULTILINE)
        for name in entry.split(",")
    }
    lines = [
        f"{indent}{name}\n" + "".join(f"{indent}    {line}\n" for line in described.split("\n"))
        for name, described in _DOCUMENTED.items()
        if name in names and name not in own
    ]
    return text[: match.start()] + "".join(lines) + text[match.end() :]
