"""Left-looking elimination of slabs: by tasks on spans of their columns, or on devices.

On the host a span is updated by each block of earlier columns, then by the spans left of it in
its slab, and then factored. Chunks depend on each other through their factors only, so that the
panel of one slab is factored while other cores begin to update the next slab (lookahead).

On other devices a slab is resident (`hdgemm.linalg.slabs._resident`): it is uploaded once, and
updated by each block of earlier columns. Its own columns are factored by panels. Each panel comes
back to the host when all columns left of it have updated it, is factored by LAPACK, and updates the
columns right of it on the devices: the columns of the next panel first, which the host factors
while devices update the others (lookahead).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from hdgemm.linalg.planning.slab import Columns, factored, panels, strips
from hdgemm.linalg.slabs._column_span import ColumnSpan
from hdgemm.machine.limits import cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.linalg.planning.slab import SlabPlan
    from hdgemm.linalg.slabs._column_span import Factorisation
    from hdgemm.linalg.slabs._core_team import CoreTeam
    from hdgemm.linalg.slabs._resident import ResidentBlock, ResidentColumns
    from hdgemm.linalg.slabs.pipeline import SlabPipeline
    from hdgemm.linalg.slabs.slab import FactoredColumns, Slab
    from hdgemm.threads import Call

    _Ends = tuple[int, int]

#: Columns of a span: with fewer, gemm is slower; with more, it is hardly faster.
_NARROWEST: Final = 64
_WIDEST: Final = 512
#: Chunks for each core that are factored, so that all cores are busy until shortly before the end
#: of a slab.
_PER_CORE: Final = 2


def queue_slab(pipeline: SlabPipeline, slab: Slab, method: Factorisation) -> list[ColumnSpan]:
    """Queue the updates and the factorisation of a slab; return its spans, none on devices."""
    plan = pipeline.plan
    if plan.devices:
        _run_slab(pipeline, slab, method)
        return []
    own, rest = _cut_slab(plan, slab.place)
    spans = [ColumnSpan(pipeline.team, slab, *ends) for ends in (*own, *rest)]
    wide = _joined(pipeline.team, slab, spans)
    for number, block in enumerate(pipeline.earlier(slab), 1):
        for span in wide:
            update = partial(method.update, span, block, number)
            block.tasks.append(span.then(update, *block.after))
    for span in spans:
        span.latest = next(x.latest for x in wide if span.place.first < x.place.last)
    _queue_panels(pipeline, spans, len(own), method)
    return spans


def _queue_panels(
    pipeline: SlabPipeline, spans: list[ColumnSpan], panels: int, method: Factorisation
) -> None:
    """Queue the factorisation of the first spans, and the updates of the spans right of each.

    The next panel is updated and factored first (lookahead); then the others are updated, so that
    all spans advance together and few tasks are left for the end.
    """
    cholesky = pipeline.plan.kind == "cholesky"
    ahead: tuple[FactoredColumns, Call[None]] | None = None

    def update(span: ColumnSpan) -> None:
        if ahead is not None:
            span.then(partial(method.update, span, ahead[0], 0), ahead[1])

    for number, span in enumerate(spans[:panels], 1):
        update(span)
        factored = span.then(partial(method.factor, span))
        for other in spans[number:]:
            update(other)
        ahead = span.block(span.place.top if cholesky else span.place.first), factored
    for span in spans[panels:]:
        update(span)


def _joined(team: CoreTeam, slab: Slab, spans: list[ColumnSpan]) -> list[ColumnSpan]:
    """Join neighbours to spans of at most `_WIDEST` columns, one for each core at least.

    Earlier columns update these: gemm is faster with more columns. Narrow spans are factored.
    """
    widest = max((span.place.width for span in spans), default=1)
    count = max(1, min(_WIDEST // widest, len(spans) // cores()))
    groups = [spans[at : at + count] for at in range(0, len(spans), count)]
    return [ColumnSpan(team, slab, group[0].place.first, group[-1].place.last) for group in groups]


def _run_slab(pipeline: SlabPipeline, slab: Slab, method: Factorisation) -> None:
    """Update and factor a slab that devices hold; each strip of it comes back once."""
    plan, place, resident = pipeline.plan, slab.place, pipeline.resident
    slab.wait_loaded()
    for columns in resident:
        columns.begin(slab)
    for number, block in enumerate(pipeline.earlier(slab), 1):
        _update(resident, _sent(resident, method, block, number), method, place)
        _settle(resident)
    own = panels(plan, place)
    following = [*own[1:], None] if own else []
    _begin_fetch(resident, own[:1])
    for panel, after in zip(own, following, strict=True):
        _settle(resident)
        span = ColumnSpan(pipeline.team, slab, panel.first, panel.last)
        method.factor(span)
        if panel.last < place.last:
            sent = _sent(resident, method, span.block(factored(plan, panel).top), 0)
            middle = panel.last if after is None else after.last
            _update(resident, sent, method, Columns(panel.last, middle, 0))
            _begin_fetch(resident, [] if after is None else [after])
            _update(resident, sent, method, Columns(middle, place.last, 0))
    _begin_fetch(resident, strips(plan, place)[len(own) :])
    _settle(resident)
    for columns in resident:
        columns.finish()


def _sent(
    resident: Sequence[ResidentColumns], method: Factorisation, block: FactoredColumns, number: int
) -> list[ResidentBlock]:
    """Upload a block to all devices."""
    squares = method.squares(block)
    return [columns.block(number, block, squares) for columns in resident]


def _update(
    resident: Sequence[ResidentColumns],
    sent: list[ResidentBlock],
    method: Factorisation,
    cols: Columns,
) -> None:
    for columns, block in zip(resident, sent, strict=True):
        columns.update(method.update_resident, block, cols.first, cols.last)


def _begin_fetch(resident: Sequence[ResidentColumns], fetched: Sequence[Columns]) -> None:
    for columns in resident:
        for strip in fetched:
            columns.begin_fetch(strip)


def _settle(resident: Sequence[ResidentColumns]) -> None:
    for columns in resident:
        columns.settle()


def _cut_slab(plan: SlabPlan, place: Columns) -> tuple[list[_Ends], list[_Ends]]:
    """Cut the columns of a slab that are eliminated, and the others, into spans."""
    if plan.kind in ("form q", "apply q"):
        return [], _cut(place.first, place.last)
    own = plan.eliminated(place)
    if plan.kind == "qr":  # each span is a block with a T of its own
        return [part[:2] for part in plan.parts(place)], _cut(own.last, place.last)
    return _cut(own.first, own.last), _cut(own.last, place.last)


def _cut(first: int, last: int) -> list[_Ends]:
    width = last - first
    count = max(1, -(-width // _WIDEST), min(_PER_CORE * cores(), width // _NARROWEST))
    step = max(1, -(-width // (8 * count)) * 8)
    return [(start, min(start + step, last)) for start in range(first, last, step)]
