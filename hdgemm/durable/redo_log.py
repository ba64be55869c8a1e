"""New tiles kept aside until they are durable in C, for a C that is updated in place.

C := alpha·A·B + beta·C cannot be computed twice where it overwrites what it reads. So the new
bytes of each slab are made durable here before the first of them goes to C, and stay until C and
the journal are durable too: at any moment a slab of C is old, or new, or whole in here.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.durable.fingerprint import checksum
from hdgemm.durable.journal import decode, encode
from hdgemm.errors import InputError
from hdgemm.matrices.draft import no_space
from hdgemm.matrices.files import BlockFile, sync
from hdgemm.matrices.transfer import ALIGNMENT, address, aligned_bytes
from hdgemm.pipeline.plan import Rect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from hdgemm.durable.journal import Journal
    from hdgemm.matrices.draft import Draft

#: A slot begins with one block that describes it; the data follows at its memory's own phase, so
#: that it can be written directly.
_HEAD: Final = ALIGNMENT


@dataclass(frozen=True, slots=True)
class Kept:
    """A slab found whole: where it belongs, its checksum, and where its bytes are."""

    rect: Rect
    crc: int
    offset: int
    nbytes: int


class RedoLog:
    """An existing file of `count` slots for slabs of up to `slot_bytes`, which take turns in them.

    `run` names the run; slots of other runs are not its own.
    """

    def __init__(self, path: Path, run: str, slot_bytes: int, count: int) -> None:
        self._file = BlockFile(path, writable=True)
        self._run = run
        self._pitch = _pitch(slot_bytes)
        self.count = count

    @classmethod
    def create(cls, path: Path, run: str, slot_bytes: int, count: int) -> RedoLog:
        """Make a log with its space reserved, durably, or raise `MatrixIOError`."""
        nbytes = count * _pitch(slot_bytes)
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
        return cls(path, run, slot_bytes, count)

    def keep(self, slot: int, rect: Rect, data: NDArray[Any], crc: int) -> None:
        """Put a contiguous slab with its checksum into a slot; return when that is durable."""
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

    def kept(self) -> Iterator[Kept]:
        """Yield this run's slabs that are whole; torn ones never reached C."""
        head = aligned_bytes(_HEAD)
        for slot in range(self.count):
            self._file.read(slot * self._pitch, head)
            record = decode(head.tobytes().split(b"\n", 1)[0])
            if record is None or record["run"] != self._run:
                continue
            kept = Kept(Rect(*record["rect"]), record["crc"], record["offset"], record["nbytes"])
            if checksum(self.load(kept, np.dtype(np.uint8))) == kept.crc:
                yield kept

    def load(self, kept: Kept, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a slab's elements, as one row."""
        memory = aligned_bytes(kept.nbytes, kept.offset % ALIGNMENT)
        self._file.read(kept.offset, memory)
        return memory.view(dtype.newbyteorder("="))

    def close(self) -> None:
        """Close the file, and leave it."""
        self._file.close()


def _pitch(slot_bytes: int) -> int:
    # The block that describes it, a phase of less than a block, and a ragged end.
    return _HEAD + 2 * ALIGNMENT + -(-slot_bytes // ALIGNMENT) * ALIGNMENT


def close_run(journal: Journal, draft: Draft[Any] | None, redo: RedoLog | None) -> None:
    """Close the files of a run; one that had begun is left as it is, to be resumed later."""
    with closing(journal):
        if redo is not None:
            redo.close()
        if draft is not None and journal.records:
            draft.matrix.close()
        elif draft is not None:
            draft.discard()
