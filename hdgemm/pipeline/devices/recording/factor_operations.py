"""Operations of factorisations on the recording device, with NumPy and BLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hdgemm.pipeline.devices.protocol import view
from hdgemm.pipeline.devices.recording.races import access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Block, Completion
    from hdgemm.pipeline.devices.recording.operation import Kind
    from hdgemm.pipeline.devices.recording.races import Access, Queue


class FactorOperations:
    """Enqueues solves, permutations, copies and conjugations in the queue of products."""

    def _enqueue(
        self,
        queue: Queue,
        amount: int,
        accesses: list[Access],
        work: Callable[[], None],
        after: Sequence[Completion],
        *,
        kind: Kind | None = None,
    ) -> Completion:
        raise NotImplementedError

    def trsm(
        self,
        a: Block,
        b: Block,
        after: Sequence[Completion],
        *,
        side: str = "L",
        lower: bool = True,
        trans: str = "N",
        unit: bool = False,
    ) -> Completion:
        """Solve with BLAS, to which a row-major block is its column-major transpose."""
        from hdgemm import fortran

        other = "R" if side == "L" else "L"

        def work() -> None:
            fortran.trsm(view(a).T, view(b).T, side=other, lower=not lower, trans=trans, unit=unit)

        accesses = [access(a, writes=False), access(b, writes=True)]
        return self._enqueue("gemm", a.rows * b.rows * b.cols, accesses, work, after, kind="trsm")

    def permute(
        self,
        block: Block,
        places: NDArray[np.int64],
        sources: NDArray[np.int64],
        after: Sequence[Completion],
        *,
        axis: int = 0,
    ) -> Completion:
        """Gather with NumPy, then scatter."""

        def work() -> None:
            rows = view(block) if axis == 0 else view(block).T
            rows[places] = rows[sources]

        nbytes = len(places) * (block.cols, block.rows)[axis] * block.tile.dtype.itemsize
        accesses = [access(block, writes=True)]
        return self._enqueue("gemm", nbytes, accesses, work, after, kind="permute")

    def copy(self, source: Block, target: Block, after: Sequence[Completion]) -> Completion:
        """Copy from tile to tile."""

        def work() -> None:
            np.copyto(view(target), view(source))

        nbytes = source.rows * source.cols * source.tile.dtype.itemsize
        accesses = [access(source, writes=False), access(target, writes=True)]
        return self._enqueue("gemm", nbytes, accesses, work, after, kind="copy")

    def conjugate(self, block: Block, after: Sequence[Completion]) -> Completion:
        """Conjugate with NumPy."""

        def work() -> None:
            np.conjugate(view(block), out=view(block))

        nbytes = block.rows * block.cols * block.tile.dtype.itemsize
        accesses = [access(block, writes=True)]
        return self._enqueue("gemm", nbytes, accesses, work, after, kind="conjugate")
