"""New pieces kept aside until they are durable in a matrix that is updated in place.

What overwrites its own input cannot be computed twice. So a new piece is made durable here, and
then recorded, before its first byte goes to the matrix, and stays until it is durable there: a
piece of the matrix is old and has no record, or is new, or is whole in here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.durable.fingerprint import checksum
from hdgemm.durable.journal import decode, encode, redo_path
from hdgemm.errors import InputError
from hdgemm.matrices.draft import no_space
from hdgemm.matrices.files import BlockFile, sync
from hdgemm.matrices.transfer import ALIGNMENT, address, aligned_bytes
from hdgemm.pipeline.tiles import Rect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix

#: A slot begins with one block that describes it; the data follows at its memory's own phase, so
#: that it can be written directly.
_HEAD: Final = ALIGNMENT


@dataclass(frozen=True, slots=True)
class _Kept:
    """A piece found whole: where it belongs, its checksum, and where its bytes are."""

    rect: Rect
    crc: int
    offset: int
    nbytes: int


class RedoLog:
    """The redo log that lies beside a journal: `count` slots for pieces of up to `slot_bytes`.

    `run` names the run; slots of other runs are not its own.
    """

    def __init__(self, journal: Path, run: str, slot_bytes: int, count: int) -> None:
        self._file = BlockFile(redo_path(journal), writable=True)
        self._run = run
        self._pitch = _pitch(slot_bytes)
        self.count = count

    @classmethod
    def create(cls, journal: Path, run: str, slot_bytes: int, count: int) -> RedoLog:
        """Make a log with its space reserved, durably, or raise `MatrixIOError`."""
        path, nbytes = redo_path(journal), count * _pitch(slot_bytes)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InputError(f"cannot create {path}: {error.strerror}", path=str(path)) from error
        try:
            os.posix_fallocate(fd, 0, nbytes)
            os.fsync(fd)
        except OSError as error:
            path.unlink()
            raise no_space(path, nbytes, error) from error
        finally:
            os.close(fd)
        sync(path.parent)
        return cls(journal, run, slot_bytes, count)

    def keep(self, slot: int, rect: Rect, data: NDArray[Any]) -> int:
        """Put a contiguous piece into a slot; return its checksum when that is durable."""
        crc = checksum(data)
        memory: NDArray[np.uint8] = data.reshape(-1).view(np.uint8)
        start = slot * self._pitch
        offset = start + _HEAD + address(memory) % ALIGNMENT
        record = {
            "run": self._run,
            "rect": list(rect),
            "crc": crc,
            "offset": offset,
            "nbytes": memory.nbytes,
        }
        head = aligned_bytes(_HEAD)
        head[:] = 0
        line = encode(record)
        head[: len(line)] = np.frombuffer(line, np.uint8)
        self._file.write(offset, memory)
        self._file.write(start, head)
        self._file.flush()
        return crc

    def apply(self, matrix: Matrix, pieces: Mapping[Rect, int]) -> None:
        """Write to a matrix, durably, the recorded pieces that are kept here."""
        for kept in self._kept():
            if pieces.get(kept.rect) == kept.crc:
                tile = self._load(kept, matrix.dtype).reshape(kept.rect.rows, kept.rect.cols)
                matrix.write(kept.rect.row, kept.rect.col, tile)
        matrix.flush()

    def _kept(self) -> Iterator[_Kept]:
        """Yield this run's pieces that are whole; torn ones have no record."""
        head = aligned_bytes(_HEAD)
        for slot in range(self.count):
            self._file.read(slot * self._pitch, head)
            record = decode(head.tobytes().split(b"\n", 1)[0])
            if record is None or record["run"] != self._run:
                continue
            kept = _Kept(Rect(*record["rect"]), record["crc"], record["offset"], record["nbytes"])
            if checksum(self._load(kept, np.dtype(np.uint8))) == kept.crc:
                yield kept

    def _load(self, kept: _Kept, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a piece's elements, as one row."""
        memory = aligned_bytes(kept.nbytes, kept.offset % ALIGNMENT)
        self._file.read(kept.offset, memory)
        return memory.view(dtype.newbyteorder("="))

    def close(self) -> None:
        """Close the file, and leave it."""
        self._file.close()


def _pitch(slot_bytes: int) -> int:
    # The block that describes it, a phase of less than a block, and a ragged end.
    return _HEAD + 2 * ALIGNMENT + -(-slot_bytes // ALIGNMENT) * ALIGNMENT
