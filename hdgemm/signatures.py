"""Types of the arguments that the public calls share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    import os
    import threading
    from typing import TypeAlias

    from hdgemm.durable.run import Checkpointing
    from hdgemm.matrices.location import Location
    from hdgemm.options import Options
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.progress import ProgressCallback
    from hdgemm.run.session import Session

    #: The location of a stored matrix: a path, its text, or a parsed location.
    Where: TypeAlias = str | os.PathLike[str] | Location


class Writable(Protocol):
    """A matrix that C is written into: an array, a memmap, a stored matrix, a dataset."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""

    @property
    def dtype(self) -> Any:
        """Type of its elements."""

    def __setitem__(self, key: Any, value: Any, /) -> None: ...


class RunArguments(TypedDict, total=False):
    """Keywords that every call takes that runs a product."""

    options: Options | None
    session: Session | None
    progress: ProgressCallback | bool | None
    observer: Observer | None
    cancel: threading.Event | None
    checkpoint: Checkpointing
    restart: bool
