"""One call of the library: its operands opened and checked, its result published when whole."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.durable.destination import Destination
from hdgemm.durable.run import check_whole, run_durably
from hdgemm.errors import HdgemmError, InputError
from hdgemm.matrices.location import parse_location
from hdgemm.matrices.operands import Operand, open_operand
from hdgemm.matrices.stores import create_matrix
from hdgemm.options import Options
from hdgemm.product.aliasing import same_elements
from hdgemm.product.arguments import check_product, trans_flags
from hdgemm.product.product import Multiplication
from hdgemm.run.engine import run_multiplication, run_scaling_only
from hdgemm.verify import MEMORY, conclude, prepare

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from hdgemm.durable.checkpoint import Checkpoint
    from hdgemm.durable.run import Checkpointing
    from hdgemm.pipeline.plan import Plan
    from hdgemm.pipeline.timeline import Observer
    from hdgemm.product.arguments import Product
    from hdgemm.progress import ProgressCallback
    from hdgemm.report import Report
    from hdgemm.verify.freivalds import Check


@dataclass(frozen=True, slots=True)
class Call:
    """C := alpha·op(A)·op(B) + beta·C with operands opened and checked, nothing written yet.

    Parameters
    ----------
    product
        Extents, dtype and factors.
    a, b, old
        The operands; `old` is the C that is read, None where it is not.
    target
        Where C goes: an array, or the path of a file.
    in_place
        The opened target, where C is written straight into it.
    """

    product: Product
    a: Operand
    b: Operand
    old: Operand | None
    target: Any
    in_place: Operand | None

    @classmethod
    def of(
        cls,
        a: Any,
        b: Any,
        *,
        alpha: Any = 1.0,
        beta: Any = 0.0,
        c: Any = None,
        trans_a: int = False,
        trans_b: int = False,
        out: Any = None,
    ) -> Call:
        """Open and check the arguments of `hdgemm.dgemm`."""
        flag, conj = trans_flags(trans_a, "trans_a")
        left = open_operand(a, what="a", trans=flag, conj=conj)
        flag, conj = trans_flags(trans_b, "trans_b")
        right = open_operand(b, what="b", trans=flag, conj=conj)
        # A file is never updated in place: until the new C is whole, it keeps the old one.
        updates = out is not None and out is c and not isinstance(out, str | os.PathLike)
        old = None if c is None else open_operand(c, what="c", writable=updates)
        in_place = old if updates else _open_target(out)
        place = in_place if in_place is not None or out is None else _place(out, a, b)
        product = check_product(alpha, left, right, beta, old, place)
        if (
            not updates
            and in_place is not None
            and old is not None
            and same_elements(in_place, old)
        ):
            old = in_place
        if out is None:
            out = np.empty((product.m, product.n), product.dtype)
            in_place = open_operand(out, what="out", writable=True)
        return cls(product, left, right, old if product.reads_c else None, out, in_place)

    def run(
        self,
        options: Options | None,
        *,
        plan: Plan | None = None,
        progress: ProgressCallback | None = None,
        observer: Observer | None = None,
        cancel: threading.Event | None = None,
        checkpoint: Checkpointing = False,
        restart: bool = False,
    ) -> Report:
        """Compute C; a file appears under its name only when it is whole (and verified)."""
        options = options or Options()
        if restart and not checkpoint:
            raise InputError("restart goes with checkpoint: only a journal can be begun again")
        if options.checks_product and checkpoint and self._updates:
            raise InputError(
                "verify needs the old C, which a run that goes on later finds overwritten: write "
                "the result elsewhere (out=...), or choose verify='tiles' or False"
            )

        def compute(c: Operand, durable: Checkpoint | None = None) -> Report:
            check = self._prepared_check(c, options) if options.checks_product else None
            report = self._compute(c, options, plan, progress, observer, cancel, durable)
            if check is not None and not (verified := conclude(check)).passed:
                raise HdgemmError(f"the product failed its check: {verified}", check=verified)
            return report

        if checkpoint:
            return run_durably(
                self.product, self.inputs(), self._destination(), compute,
                journal=checkpoint, restart=restart,
            )  # fmt: skip
        if self.in_place is not None:
            check_whole(self.in_place)
            return compute(self.in_place)
        with create_matrix(
            self.target, (self.product.m, self.product.n), self.product.dtype
        ) as draft:
            report = compute(draft.operand)
            draft.publish()
        return report

    def inputs(self) -> dict[str, Operand]:
        """Return the operands that are only read, by letter."""
        found = {"A": self.a, "B": self.b}
        if self.old is not None and self.old is not self.in_place:
            found["C"] = self.old
        return found

    def _destination(self) -> Destination:
        if self.in_place is not None:
            return Destination.of_existing(self.in_place, updates=self._updates)
        shape = (self.product.m, self.product.n)
        return Destination.aside(parse_location(self.target), shape, self.product.dtype, self.old)

    def _compute(
        self,
        c: Operand,
        options: Options,
        plan: Plan | None,
        progress: ProgressCallback | None,
        observer: Observer | None,
        cancel: threading.Event | None,
        durable: Checkpoint | None,
    ) -> Report:
        product = self.product
        work = Multiplication(
            self.a, self.b, c, self.old, product.alpha, product.beta, product.dtype
        )
        if not product.reads_product:
            return run_scaling_only(work, cancel)
        return run_multiplication(
            work, options, plan=plan, progress=progress, observer=observer, cancel=cancel,
            checkpoint=durable,
        )  # fmt: skip

    @property
    def _updates(self) -> bool:
        return self.old is not None and self.old is self.in_place

    def _prepared_check(self, c: Operand, options: Options) -> Check:
        product = self.product
        check = prepare(
            self.a, self.b, c, alpha=product.alpha, beta=product.beta, old=self.old,
            memory=min(options.host_bytes or MEMORY, MEMORY),
        )  # fmt: skip
        if self._updates:
            check.remember_old()
        return check

    def result(self) -> Any:
        """Return C as the caller gave it; a file as a read-only memmap, a store by its name."""
        if isinstance(self.target, str | os.PathLike):
            where = parse_location(self.target)
            return np.load(where.path, mmap_mode="r") if where.format == "npy" else self.target
        return self.target


def _place(out: Any, a: Any, b: Any) -> Path | None:
    """Return the file that `out` names; a store's items are told apart by their names here."""
    where = parse_location(out)
    if where.format in ("npy", "raw"):
        return where.path
    for operand, what in ((a, "a"), (b, "b")):
        if not isinstance(operand, str | os.PathLike):
            continue
        there = parse_location(operand)
        if there == where:
            raise InputError(f"out is {what} ({where}): write C under another name")
        if where.format == "hdf5" and there.path.exists() and there.path == where.path:
            raise InputError(
                f"{where.path} holds {what}, and HDF5 does not read and write one file at once: "
                "write C to another file"
            )
    return None


def _open_target(out: Any) -> Operand | None:
    if out is None or isinstance(out, str | os.PathLike):
        return None
    return open_operand(out, what="out", writable=True)
