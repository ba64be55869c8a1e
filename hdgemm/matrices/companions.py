"""Small files beside a matrix, such as the pivots beside a factor."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Self

from hdgemm.errors import MatrixIOError
from hdgemm.matrices.draft import give_name, reserve
from hdgemm.matrices.factor_files import remove_described
from hdgemm.matrices.files import space_advice, sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from hdgemm.matrices.files import BlockFile


class CompanionFiles:
    """Small files that get their names together, on leaving a ``with`` block without an error.

    They are durable before any of them has its name, and replace files of these names. Until then
    they have no name where the file system can do that: a killed process leaves nothing of them.

    Files that an earlier factorisation left beside the matrix `beside`, and that have no successor
    here, are removed.
    """

    def __init__(self) -> None:
        self.beside: Path | None = None
        self._files: dict[Path, BlockFile] = {}
        self._written: list[Path] = []

    def reserve(self, path: Path, nbytes: int) -> None:
        """Take disk space for one, before the work that it is needed for.

        Raises
        ------
        InputError
            When nothing can be created there.
        MatrixIOError
            When the space is missing.
        """
        self._files[path] = reserve(path, b"", nbytes, sparse=nbytes == 0)

    def add(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        """Write one aside; raises `MatrixIOError` when the system refuses."""
        if path not in self._files:
            self.reserve(path, 0)
        file = self._files[path]
        with _refusals(path):
            with os.fdopen(os.dup(file.fileno()), "wb") as stream:
                write(stream)
                stream.truncate()
            file.flush()
        self._written.append(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            for file in self._files.values():
                file.close()
                file.path.unlink(missing_ok=True)

    def _publish(self) -> None:
        if self.beside is not None:
            with _refusals(self.beside):
                remove_described(self.beside, keep=frozenset(self._written))
        for path in self._written:
            with _refusals(path):
                give_name(self._files[path], path)
                sync(path.parent)


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except MatrixIOError:
        raise
    except OSError as error:
        raise MatrixIOError(
            f"cannot write {path}: {error.strerror or error}{space_advice(path, error)}",
            path=str(path),
            offset=0,
            length=0,
        ) from error
