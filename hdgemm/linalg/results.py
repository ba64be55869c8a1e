"""Results of calls that return several: matrices and vectors, opened and published together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.call.input_checks import input_unchanged
from hdgemm.call.operands import absolute
from hdgemm.errors import InputError
from hdgemm.linalg.storage import Output, check_apart
from hdgemm.matrices.location import Location, items_beside
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.product.aliasing import overlaps
from hdgemm.product.target import single

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import ExitStack
    from typing import TypeAlias

    from numpy.typing import NDArray

    from hdgemm.call.keywords import Where
    from hdgemm.linalg.rows.checkpoint import RowCheckpoint
    from hdgemm.linalg.storage import OpenOutput

    #: The place of a vector that is returned as an array.
    Vector: TypeAlias = NDArray[Any] | Where | None


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a call.

    Parameters
    ----------
    given
        Its place, as the caller gave it.
    output
        Where it goes.
    vector
        It is a vector, stored as one column.
    """

    given: Any
    output: Output
    vector: bool = False

    @classmethod
    def of(
        cls,
        out: Any,
        a: Any,
        source: StoredMatrix,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        order: str = "C",
    ) -> Result:
        """Describe a matrix, or a vector where `shape` has one extent.

        Raises
        ------
        InputError
            When it overlaps A, or has another shape.
        """
        given = absolute(single(out))
        vector = len(shape) == 1
        flat = vector and isinstance(given, np.ndarray) and given.ndim == 1
        output = Output.of(
            given[:, np.newaxis] if flat else given,
            a,
            source,
            order=order,
            overwrite_a=False,
            dtype=dtype,
            shape=(shape[0], 1) if vector else (shape[0], shape[1]),
        )
        if not output.new and overlaps(output.matrix.operand.matrix, source.operand.matrix):
            raise InputError("out overlaps a, which is read more than once: choose another out")
        return cls(given, output, vector)

    def opened(
        self,
        stack: ExitStack,
        rows: RowCheckpoint | None = None,
        run: RowCheckpoint | None = None,
        beside: Collection[str] = (),
    ) -> OpenOutput:
        """Open the place; it is published when the stack is left without an error.

        The rows of a new file are kept where a durable run of passes over `rows` is interrupted;
        `run` is a durable run that does not keep them; `beside` are items of the same file that the
        call replaces, too.
        """
        return stack.enter_context(self.output.opened(rows=rows, run=run, beside=beside))

    def value(self, target: OpenOutput) -> Any:
        """Return the result for the caller: of a .npy file a memmap, a vector for a vector."""
        if isinstance(self.given, np.ndarray):
            return self.given
        found = target.result()
        if not self.vector or (self.given is not None and target.location is None):
            return found
        if isinstance(found, StoredMatrix):
            with found:
                found = found.read()
        return found[:, 0]


def open_results(
    stack: ExitStack,
    results: tuple[Result, ...],
    source: StoredMatrix,
    *,
    rows: RowCheckpoint | None = None,
    large: int | None = 0,
) -> list[OpenOutput]:
    """Open the places of results, which must lie apart; A must not change until they are left.

    Of the result with index `large`, None for none, a durable run of passes over `rows` keeps the
    rows.
    """
    places = [each.output.out for each in results if isinstance(each.output.out, Location)]
    targets = [
        result.opened(
            stack, rows if number == large else None, rows, items_beside(result.output.out, places)
        )
        for number, result in enumerate(results)
    ]
    for number, target in enumerate(targets):
        stack.enter_context(input_unchanged(source, target.stored))
        for other in targets[:number]:
            check_apart(target, other)
    return targets


def outputs_of(out: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the places of several results; None for all stands for new arrays.

    Raises
    ------
    InputError
        When `out` is no tuple of so many.
    """
    if out is None:
        return (None,) * len(names)
    if isinstance(out, tuple | list) and len(out) == len(names):
        return tuple(out)
    raise InputError(f"out must be a tuple ({', '.join(names)}), got {out!r}")
