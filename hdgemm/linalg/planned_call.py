"""Plans of calls of factorisations and solves, made from their arguments before they run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.device_run import device_names
from hdgemm.linalg.factor_plan import (
    FactorsOfSolve,
    plan_in_array,
    row_bytes,
    slabs_for,
    storage_of,
)
from hdgemm.linalg.factored_solve import by_cholesky, by_lu
from hdgemm.linalg.joint_plan import JointPlan, facts_of
from hdgemm.linalg.operands import in_memory, open_columns, open_matrix
from hdgemm.linalg.planning import Storage
from hdgemm.linalg.qr_plan import ReflectorsOfR, adds_r, rows_of_r, tall_plan, with_r
from hdgemm.linalg.refinement import SINGLE, STEPS
from hdgemm.linalg.row_plan import rows_for
from hdgemm.linalg.run import OpenRun, folder_of, machine_of
from hdgemm.linalg.solution import ColumnSolver
from hdgemm.linalg.solve_plan import SolvePlan, Stream, plan_solve
from hdgemm.linalg.storage import takes_result
from hdgemm.linalg.system import MIRRORED, check_transposed, whole_of
from hdgemm.linalg.triangle_solver import Triangle
from hdgemm.linalg.updates import host_bytes
from hdgemm.matrices.layout import check_dtype
from hdgemm.matrices.location import parse_location
from hdgemm.matrices.transfer import SHORT
from hdgemm.product.arguments import result_dtype
from hdgemm.product.target import is_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.linalg.row_plan import RowPlan
    from hdgemm.linalg.slab_plan import Kind, SlabPlan
    from hdgemm.machine.rates import Machine
    from hdgemm.matrices.stored import StoredMatrix


def shape_of(a: Any) -> tuple[int, int] | None:
    """Return the shape of a matrix that is only described; None for a matrix."""
    shape = (a, a) if isinstance(a, int) else a
    extents = isinstance(shape, tuple) and all(isinstance(extent, int) for extent in shape)
    return shape if extents and len(shape) == 2 else None


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """What the plan of a call depends on; `matrix` is None where A is only described."""

    shape: tuple[int, int]
    matrix: StoredMatrix | None
    dtype: np.dtype[Any]
    columns: int
    out: Any
    run: OpenRun
    checkpoint: bool
    takes_result: bool

    @classmethod
    def of(
        cls, a: Any, dtype: str, columns: Any, out: Any, run: OpenRun, *, checkpoint: bool
    ) -> PlannedCall:
        """Open A, and B where it is a matrix; arguments as of `hdgemm.linalg.plan`."""
        shape, matrix = shape_of(a), None
        if shape is None:
            matrix = open_matrix(a)
            shape = matrix.shape
        found = check_dtype(dtype, "a") if matrix is None else matrix.dtype.newbyteorder("=")
        if not isinstance(columns, int):
            b, _ = open_columns(columns)
            if matrix is not None and b.shape[0] != matrix.shape[0]:
                raise InputError(
                    f"b has {b.shape[0]} rows, a {matrix.shape[0]}: they must be as many"
                )
            columns, found = b.shape[1], result_dtype(found, b.dtype)
        return cls(shape, matrix, found, columns, out, run, checkpoint, takes_result(a))

    @property
    def folder(self) -> Path | None:
        """The folder of A, or the present one where A is only described."""
        return Path.cwd() if self.matrix is None else folder_of(self.matrix)

    @property
    def out_folder(self) -> Path | None:
        """The folder of the result, where that is a file."""
        if self.out is None or not is_location(self.out):
            return None
        return Path(parse_location(self.out).path).absolute().parent

    def row_bytes(self, transposed: bool, itemsize: int | None = None) -> int:
        """Return the bytes from one row to the next of a row-major A, or of its transpose.

        They are those of elements of `itemsize` bytes, to which A is converted.
        """
        if self.matrix is None:
            return 0
        pitch = row_bytes(self.matrix.T if transposed else self.matrix)
        return pitch * (itemsize or self.dtype.itemsize) // self.matrix.dtype.itemsize

    def machine(self, folder: Path | None, depth: int | None = None) -> Machine:
        """Return the rates to plan with."""
        return machine_of(self.shape, self.dtype, folder, self.run, depth=depth)

    def rows(self) -> RowPlan:
        """Return the plan of one pass over the rows of A and B."""
        return rows_for(self.shape, self.columns, self.dtype, self.folder, self.run)

    def slabs(self, kind: Kind, storage: Storage) -> SlabPlan:
        """Return the plan of a factorisation."""
        machine = self.machine(self.out_folder or self.folder)
        return slabs_for(
            kind, self.shape, self.dtype.name, machine, self.run,
            storage=storage, durable=self.checkpoint,
        )  # fmt: skip

    def solution(self, stream: Stream, folder: Path | None, reserved: int = 0) -> SolvePlan:
        """Return the plan of a solution with triangles that are stored in a folder."""
        machine = self.machine(folder or self.out_folder, self.columns)
        return plan_solve(
            (self.shape[0], self.columns), self.dtype, stream,
            host_bytes(self.run.options) - reserved, machine,
            in_array=not is_location(self.out), tile=self.run.options.tile,
        )  # fmt: skip

    def triangle(self) -> Stream:
        """Return what a solve with a stored triangle reads."""
        if self.matrix is None:
            return Stream(1, 1, self.dtype.itemsize)
        triangles = (Triangle(self.matrix, lower=True),)
        return ColumnSolver(lambda _solver, _x: None, triangles).stream(self.dtype)

    def overwritten(self, arguments: Mapping[str, Any]) -> StoredMatrix | None:
        """Return A where the factors are stored over it."""
        a = self.matrix
        permitted = arguments.get("overwrite_a") and self.takes_result
        if not permitted or arguments["assume_a"] in MIRRORED or a is None:
            return None
        kept = bool(arguments.get("refine")) and self.dtype.name in SINGLE
        same, array = a.dtype.newbyteorder("=") == self.dtype, a.operand.matrix.array
        in_array = array is not None and array.flags.writeable and not self.checkpoint
        takes = self.folder is not None or in_array
        return a if same and takes and not kept else None

    def factors(
        self, kind: Kind, transposed: bool, mirrors: bool, place: StoredMatrix | None
    ) -> SlabPlan:
        """Return the plan of factors, of A or of its transpose, for a solve: in a new array where A
        is one, over A, which `place` is then, or in a scratch file.
        """
        n, itemsize = self.shape[0], self.dtype.itemsize
        if place is not None:
            return replace(self, out=None).over(kind, place.T if transposed else place)
        if self.matrix is not None and self.folder is None and not self.checkpoint:
            return plan_in_array(kind, self.shape, self.dtype, None, self.run.options)
        described = n * itemsize if mirrors and self.matrix is None else 0
        pitch = described or self.row_bytes(transposed, itemsize)
        call = self if self.checkpoint else replace(self, out=None)
        return call.slabs(kind, Storage(True, pitch, copies=not mirrors, whole=True))

    def over(self, kind: Kind, place: StoredMatrix) -> SlabPlan:
        """Return the plan of factors of A, or of its transpose, that are stored over it."""
        if in_memory(place, self.dtype) is not None:
            return plan_in_array(kind, self.shape, self.dtype, None, self.run.options)
        return self.slabs(kind, storage_of(place, place, new=False))

    def factorisation(self, kind: Kind, arguments: Mapping[str, Any]) -> SlabPlan:
        """Return the plan of `lu_factor` or of Cholesky's."""
        upper = kind == "cholesky" and not arguments.get("lower", False)
        if self.out is None and self.matrix is not None:
            place = self.overwritten(arguments)
            if place is not None:
                return self.over(kind, place.T if upper else place)
            return plan_in_array(kind, self.shape, self.dtype, self.folder, self.run.options)
        return self._new(kind, upper)

    def qr(self, arguments: Mapping[str, Any]) -> SlabPlan | RowPlan:
        """Return the plan of reflectors, or of R alone."""
        if self._in_array_on_devices:
            return plan_in_array("qr", self.shape, self.dtype, None, self.run.options)
        if arguments.get("mode") == "r":
            tall = tall_plan(self.shape, self.dtype, self.folder, self.run)
            return self._with_r(arguments) if tall is None else tall
        plan = self._new("qr")
        over_a = bool(arguments.get("overwrite_a"))
        # A matrix that is only described is factored into a file.
        if self.matrix is None or not adds_r(self.out, self.folder, overwrite_a=over_a):
            return plan
        m, n = self.shape
        return with_r(plan, n, min(m, n), new=True)

    def _new(self, kind: Kind, upper: bool = False) -> SlabPlan:
        """Return the plan of factors in a new matrix; of A's transpose where they are `upper`."""
        pitch = self.row_bytes(upper)
        if self.out is None or not is_location(self.out):
            return self.slabs(kind, Storage(True, pitch))
        made = parse_location(self.out)
        row_major = made.raw is None or made.raw.order == "C"
        whole = made.format == "npy" or (made.format != "zarr" and row_major == upper)
        return self.slabs(kind, Storage(made.format != "zarr", pitch, whole, whole))

    @property
    def _in_array_on_devices(self) -> bool:
        """Whether devices factor an array into an array: the scheduler plans that while it runs."""
        in_ram = self.matrix is not None and self.folder is None and not is_location(self.out)
        return in_ram and bool(device_names(self.run.options))

    def _with_r(self, arguments: Mapping[str, Any]) -> SlabPlan:
        """Return the plan of R alone; a durable run copies it from the reflectors afterwards."""
        over, folder = self.overwritten(arguments), self.out_folder or self.folder
        place = ReflectorsOfR.of(
            self.shape, folder, overwrite_a=over is not None, durable=self.checkpoint
        )
        in_file, columns = folder is not None, self.shape[1]
        storage = Storage(
            True, self.row_bytes(False), in_file and place.columns == columns, in_file
        )
        if place.over_a and over is not None:
            storage = storage_of(over, over, new=False)
        else:
            columns = place.columns
        plan = self.slabs("qr", storage)
        if self.checkpoint:
            return plan
        new = self.out is None or is_location(self.out)
        return with_r(plan, columns, rows_of_r(self.shape, self.out), new=new)

    def completed(self, arguments: Mapping[str, Any]) -> PlannedCall:
        """Return the same with A read whole from the triangle that is stored."""
        if self.matrix is None or arguments["assume_a"] not in MIRRORED:
            return self
        lower, hermitian = bool(arguments.get("lower")), arguments["assume_a"] == "her"
        return replace(self, matrix=whole_of(self.matrix, lower=lower, hermitian=hermitian))

    def system(self, routine: str, arguments: Mapping[str, Any]) -> JointPlan:
        """Return the plan of a factorisation into a scratch file, and of the solution with it."""
        structure, transposed = arguments["assume_a"], bool(arguments.get("transposed"))
        check_transposed(
            structure, self.dtype if self.matrix is None else self.matrix.dtype,
            transposed=transposed,
        )  # fmt: skip
        kind: Kind = "cholesky" if structure == "pos" else "lu"
        upper = kind == "cholesky" and not arguments.get("lower", False)
        single = SINGLE.get(self.dtype.name) if arguments.get("refine") else None
        n, columns = self.shape[0], self.shape[0] if routine == "inv" else self.columns
        # Of a row-major matrix, refinement factors the transpose.
        turned = kind == "lu" and bool(single and self.matrix and self.matrix.order == "C")
        place = self.overwritten(arguments)
        needed = FactorsOfSolve(
            kind, (n, columns), self.dtype, single, place is not None, self.checkpoint
        )
        slabs = needed.plan_in_memory(self.folder, self.run) if routine == "solve" else None
        if slabs is None:
            factored = replace(self, dtype=single or self.dtype)
            slabs = factored.factors(kind, upper or turned, structure in MIRRORED, place)
        if place is None:
            # The second triangle is L^H of Cholesky factors, U of LU factors, L of their transpose.
            second_lower = kind == "cholesky" or transposed != turned
            stream = self.scratch(needed, stored=slabs.stores, second_lower=second_lower)
        elif kind == "cholesky":
            stream = by_cholesky(place, lower=not upper).stream(self.dtype)
        else:
            code = "T" if transposed else "N"
            stream = by_lu(place, np.empty(0, np.int64), code).stream(self.dtype)
        beside_a = slabs.stores and (place is not None or not self.checkpoint)
        reserved = needed.residual_bytes(self.run.options)
        reserved += 0 if slabs.stores else slabs.bytes_held
        solution = replace(self, columns=columns).solution(
            stream, self.folder if beside_a else None, reserved
        )
        facts = facts_of(routine, (n, columns), self.dtype.name, self.run.options)
        return JointPlan(facts, (slabs, solution))

    def scratch(self, needed: FactorsOfSolve, *, stored: bool, second_lower: bool) -> Stream:
        """Return what a solve reads of factors in a scratch file (`stored`) or in memory."""
        n, itemsize = self.shape[0], (needed.single or self.dtype).itemsize
        whole = stored and n * itemsize < SHORT
        stream = Stream(
            2, 2 if stored else 0, itemsize, whole=whole,
            keeps_lower=second_lower if whole else None,
        )  # fmt: skip
        if needed.single is None:
            return stream
        residual = n * n * self.dtype.itemsize
        return stream._replace(more=residual, copies=needed.copies, steps=STEPS)
