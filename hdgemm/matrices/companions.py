"""Small files beside a matrix, such as the pivots beside a factor."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from hdgemm.errors import MatrixIOError
from hdgemm.matrices.draft import aside
from hdgemm.matrices.files import sync, sync_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO


class CompanionFiles:
    """Small files that get their names together, on leaving a ``with`` block without an error.

    They are durable before any of them has its name, and replace files of these names.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Path, Path]] = []

    def add(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        """Write one aside; raises `MatrixIOError` when the system refuses."""
        part = aside(path)
        self._parts.append((part, path))
        with _refusals(path):
            with part.open("xb") as stream:
                write(stream)
            sync_file(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for part, path in self._parts if kind is None else ():
                with _refusals(path):
                    part.replace(path)
                    sync(path.parent)
        finally:
            for part, _path in self._parts:
                part.unlink(missing_ok=True)


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MatrixIOError(
            f"cannot write {path}: {error.strerror or error}", path=str(path), offset=0, length=0
        ) from error
