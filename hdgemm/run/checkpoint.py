"""Durable products: a plan, or the devices that draw tiles, and the tiles that are left."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from hdgemm.durable.checkpoint import Checkpoint
from hdgemm.durable.earlier_run import BEGIN_AGAIN, refuse
from hdgemm.durable.fingerprint import SAMPLE, sampled
from hdgemm.durable.identity import Identity
from hdgemm.durable.journaled_matrix import JournaledMatrix
from hdgemm.durable.place import ResultPlace
from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.fingerprint import home_of
from hdgemm.pipeline.plan import from_json
from hdgemm.pipeline.slots import pieces_of
from hdgemm.pipeline.tiles import Rect
from hdgemm.pipeline.timeline import Timeline
from hdgemm.planning.resume import remaining
from hdgemm.report import build_report

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from hdgemm.durable.place import Checkpointing
    from hdgemm.matrices.base import Matrix
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, Plan, Problem
    from hdgemm.product.product import Product
    from hdgemm.report import Report

#: Rows and columns of the sampled grid at most, where tiles vary.
_GRID: Final = 64


class ProductCheckpoint(Checkpoint):
    """A durable product on the devices of this machine.

    Its plan in the journal has the devices, and the plan of the first one: of several, which draw
    tiles of C, it gives the problem only. A run of a cluster has none.
    """

    _drawn = False

    @property
    def plan(self) -> Plan | None:
        """The earlier run's plan; None for the first run, and where several devices drew tiles."""
        if self.earlier is None:
            return None
        devices, plan = self._recorded
        return plan if len(devices) == 1 else None

    @cached_property
    def _recorded(self) -> tuple[tuple[str, ...], Plan]:
        """The earlier run's devices, and the plan of the first one."""
        if self.earlier is None or self.earlier.plan is None:
            raise InputError(
                f"the run of {self.path} was computed by a cluster: give the same command with "
                f"--cluster (client=…) to go on with it; {BEGIN_AGAIN}"
            )
        found = self.earlier.plan
        return tuple(found["devices"]), from_json(found["first"])

    def choose_devices(self, names: tuple[str, ...], options: Options) -> tuple[str, ...]:
        """Return the earlier run's devices, or `names` for the first run; refuse other devices."""
        if self.earlier is None:
            return names
        before, _ = self._recorded
        if options.devices != "auto" and names != before:
            found = f"the device was {', '.join(before)}, is {', '.join(names)}"
            refuse(self.path, [found])
        return before

    def check(self, problem: Problem, options: Options, device: DeviceSpec) -> None:
        """Refuse to go on with an earlier run's plan that was made for another problem."""
        if self.plan is not None:
            refuse(self.path, plan_differences(self.plan, problem, options, device))

    def begin(self, plan: Plan) -> Plan:
        """Prepare the journal for all of `plan`; return the plan for the units that are left."""
        tiles = tiles_of(plan)
        rects = [rect for tile in tiles for rect in tile]
        most = max(rect.area for rect in rects) * plan.problem.c.itemsize
        self._depth = max(map(len, tiles))
        self._begin_plans([plan], rects, (most, 1 + self._depth))
        done = units_done(tiles, self.pieces.standing())
        self._kept, self._parts = len(done), len(plan.units)
        return remaining(plan, done)

    def begin_shared(self, plans: Sequence[Plan]) -> list[Rect]:
        """Prepare the journal for devices that draw tiles; return the finished pieces of C.

        Any part of a tile may be a piece.
        """
        most = max(plan.tile[0] * plan.tile[1] * plan.problem.c.itemsize for plan in plans)
        self._depth = sum(map(_pieces_of_a_tile, plans))
        self._begin_plans(plans, _grid(plans[0].problem), (most, 1 + self._depth))
        done = sorted(self.pieces.standing())
        self._kept = self._parts = len(done)
        self._drawn = True
        return done

    def _begin_plans(
        self, plans: Sequence[Plan], rects: Sequence[Rect], redo: tuple[int, int]
    ) -> None:
        plan = {"devices": [each.device.name for each in plans], "first": plans[0].to_json()}
        self._begin(plan, rects, redo if self.place.updates else (0, 0))

    @contextmanager
    def recording(self, matrix: Matrix) -> Iterator[Matrix]:
        """Yield C for store2; the pieces that it writes are recorded, also after errors."""
        recorder = JournaledMatrix(
            matrix, self.record, done=self.pieces.standing(), depth=self._depth, redo=self._redo
        )
        try:
            yield recorder
        finally:
            recorder.close()
            # Tiles that devices draw are counted when they are stored.
            self._parts += recorder.written if self._drawn else 0

    def report(self) -> Report:
        """Return the report of a run that had nothing to do."""
        devices, plan = self._recorded
        fixed = len(devices) == 1
        self._kept = self._parts = len(plan.units if fixed else self.pieces.standing())
        return build_report([plan], Timeline((), 0.0), planned_bytes={}, resumption=self.resumption)


def run_durably(
    product: Product,
    compute: Callable[[Product, ProductCheckpoint], Report],
    *,
    checkpoint: Checkpointing,
    restart: bool = False,
) -> Report:
    """Compute C, or the rest of it, and publish it when it is complete.

    `compute` computes C, which is open, within a checkpoint. `checkpoint` is True for a journal
    beside C, or its path. `restart` discards an earlier run's journal and its unfinished C.

    Raises `InputError` when an earlier run's journal belongs to another command, or is in use;
    `DamagedError` when a C that is updated in place was damaged; `MatrixIOError` when a disk is
    full or fails: finished tiles stay, and the same command resumes.
    """
    if not product.reads_product:
        raise InputError(
            "checkpoint is for products, and alpha = 0 or k = 0 leaves beta*C alone: "
            "leave checkpoint out"
        )
    if product.c is not None:
        place = ResultPlace.of_existing(product.c, updates=product.updates)
    else:
        place = ResultPlace.aside(product.target, product.shape, product.c_dtype)
    identity = identity_of(product, place)
    with ProductCheckpoint(identity, place, checkpoint, restart=restart) as durable:
        if durable.finished:
            return durable.report()
        report = compute(product.stored_in(durable.output), durable)
        _check_samples(identity, product)
        durable.finish()
    return report


def identity_of(product: Product, place: ResultPlace) -> Identity:
    """Return what tells a product from every other command."""
    arguments = {
        "alpha": _exact(product.alpha),
        "beta": _exact(product.beta),
        "dtype": product.dtype.name,
    }
    return Identity.of("multiply", arguments, product.inputs(), place)


def _exact(value: complex) -> str:
    """Write a number so that it has the same bits when it is read."""
    value = complex(value)
    return repr(value if value.imag else value.real)


def _check_samples(identity: Identity, product: Product) -> None:
    """Compare samples of the inputs in files with those taken at the start.

    Content may have changed (`MatrixIOError`) where size and time of modification have not.
    """
    for letter, operand in product.inputs().items():
        home = home_of(operand.matrix)
        if home is None or sampled(operand)["content"] == identity.inputs[letter]["content"]:
            continue
        raise MatrixIOError(
            f"{letter} ({home}) has another content than at the start of the run, so that C may "
            f"mix elements of both versions: {BEGIN_AGAIN}",
            path=str(home),
            offset=0,
            length=0,
        )


def tiles_of(plan: Plan) -> list[list[Rect]]:
    """Return for each work unit the pieces in which store2 writes it."""
    return [pieces_of(plan, "C", unit.rect) for unit in plan.units]


def units_done(tiles: Sequence[Sequence[Rect]], done: Collection[Rect]) -> set[int]:
    """Return the numbers of the work units all of whose pieces are done."""
    return {unit for unit, parts in enumerate(tiles) if all(part in done for part in parts)}


def _pieces_of_a_tile(plan: Plan) -> int:
    rows, cols = (
        min(size, most)
        for size, most in zip(plan.tile[:2], (plan.problem.m, plan.problem.n), strict=True)
    )
    return len(pieces_of(plan, "C", Rect(0, 0, rows, cols)))


def _grid(problem: Problem) -> list[Rect]:
    """Return places all over C, of which the old content is sampled where tiles vary."""
    m, n = problem.m, problem.n
    down, across = max(1, -(-m // _GRID)), max(SAMPLE, -(-n // _GRID))
    return [
        Rect(row, col, 1, min(SAMPLE, n - col))
        for row in range(0, m, down)
        for col in range(0, n, across)
    ]


def plan_differences(
    plan: Plan, problem: Problem, options: Options, device: DeviceSpec
) -> list[str]:
    """Say why a plan made earlier cannot go on with this problem, these options, this device."""
    found = []
    if plan.problem.exact_terms > problem.exact_terms:
        found.append(f"sums had {plan.problem.exact_terms} exact terms, have {problem.exact_terms}")
    if _stored(plan.problem) != _stored(problem):
        found.append(f"the problem was {_stored(plan.problem)}, is {_stored(problem)}")
    for name in ("name", "unified", "granularity"):
        before, now = getattr(plan.device, name), getattr(device, name)
        if before != now:
            found.append(f"the device's {name} was {before}, is {now}")
    if plan.strategy != options.strategy:
        found.append(f"the strategy was {plan.strategy}, is {options.strategy}")
    if options.tile is not None:
        asked = tuple(map(min, options.tile, (problem.m, problem.n, problem.k)))
        if asked != plan.tile:
            found.append(f"the tile was {plan.tile}, is {asked}")
    if options.host_bytes is not None and plan.host_bytes > options.host_bytes:
        found.append(
            f"the plan holds {plan.host_bytes} bytes of host memory, allowed are now "
            f"{options.host_bytes}"
        )
    allowed = device.limit(options.device_bytes)
    if allowed is not None and plan.device_bytes > allowed:
        found.append(
            f"the plan holds {plan.device_bytes} bytes on {device.name}, allowed are now {allowed}"
        )
    return found


def _stored(problem: Problem) -> Problem:
    """Leave out how the operands meet the device: that is the plan's choice, not the command's."""
    a, b, c = (replace(spec, path="staged") for spec in (problem.a, problem.b, problem.c))
    return replace(problem, a=a, b=b, c=c, exact_terms=0)
