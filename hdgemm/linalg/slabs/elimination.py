"""Left-looking elimination of slabs: by tasks on chunks of their columns, or on devices.

On the host a chunk is updated by each block of earlier columns, then by the chunks left of it in
its slab, and then factored. Chunks depend on each other through their factors only, so that the
panel of one slab is factored while other cores begin to update the next slab (lookahead).

On other devices a slab is resident (`hdgemm.linalg.slabs.resident`): it is uploaded once, and
updated by each block of earlier columns. Its own columns are factored by panels. Each panel comes
back to the host when all columns left of it have updated it, is factored by LAPACK, and updates the
columns right of it on the devices: the columns of the next panel first, which the host factors
while devices update the others (lookahead).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from hdgemm.linalg.planning.slab import Columns, factored, panels, strips
from hdgemm.linalg.slabs.chunk import Chunk
from hdgemm.machine.limits import cores

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from hdgemm.linalg.planning.slab import SlabPlan
    from hdgemm.linalg.slabs.chunk import Factorisation
    from hdgemm.linalg.slabs.core_team import CoreTeam
    from hdgemm.linalg.slabs.pipeline import SlabPipeline
    from hdgemm.linalg.slabs.resident import ResidentBlock, ResidentColumns
    from hdgemm.linalg.slabs.slab import FactoredColumns, Slab

    _Span = tuple[int, int]

#: Columns of a chunk: with fewer, gemm is slower; with more, it is hardly faster.
_NARROWEST: Final = 64
_WIDEST: Final = 512
#: Chunks for each core that are factored, so that all cores are busy until shortly before the end
#: of a slab.
_PER_CORE: Final = 2


def queue_slab(pipeline: SlabPipeline, slab: Slab, method: Factorisation) -> list[Chunk]:
    """Queue the updates and the factorisation of a slab; return its chunks, none on devices."""
    plan = pipeline.plan
    if plan.devices:
        _run_slab(pipeline, slab, method)
        return []
    own, rest = _spans(plan, slab.place)
    chunks = [Chunk(pipeline.team, slab, *span) for span in (*own, *rest)]
    wide = _joined(pipeline.team, slab, chunks)
    for number, block in enumerate(pipeline.earlier(slab), 1):
        for chunk in wide:
            block.tasks.append(chunk.then(partial(method.update, chunk, block, number)))
    for chunk in chunks:
        chunk.latest = next(x.latest for x in wide if chunk.place.first < x.place.last)
    _queue_panels(pipeline, chunks, len(own), method)
    return chunks


def _queue_panels(
    pipeline: SlabPipeline, chunks: list[Chunk], panels: int, method: Factorisation
) -> None:
    """Queue the factorisation of the first chunks, and the updates of the chunks right of each.

    The next panel is updated and factored first (lookahead); then the others are updated, so that
    all chunks advance together and few tasks are left for the end.
    """
    cholesky = pipeline.plan.kind == "cholesky"
    ahead: tuple[FactoredColumns, Future[None]] | None = None

    def update(chunk: Chunk) -> None:
        if ahead is not None:
            chunk.then(partial(method.update, chunk, ahead[0], 0), ahead[1])

    for number, chunk in enumerate(chunks[:panels], 1):
        update(chunk)
        factored = chunk.then(partial(method.factor, chunk))
        for other in chunks[number:]:
            update(other)
        ahead = chunk.block(chunk.place.top if cholesky else chunk.place.first), factored
    for chunk in chunks[panels:]:
        update(chunk)


def _joined(team: CoreTeam, slab: Slab, chunks: list[Chunk]) -> list[Chunk]:
    """Join neighbours to chunks of at most `_WIDEST` columns, one for each core at least.

    Earlier columns update these: gemm is faster with more columns. Narrow chunks are factored.
    """
    widest = max((chunk.place.width for chunk in chunks), default=1)
    count = max(1, min(_WIDEST // widest, len(chunks) // cores()))
    groups = [chunks[at : at + count] for at in range(0, len(chunks), count)]
    return [Chunk(team, slab, group[0].place.first, group[-1].place.last) for group in groups]


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
        chunk = Chunk(pipeline.team, slab, panel.first, panel.last)
        method.factor(chunk)
        if panel.last < place.last:
            sent = _sent(resident, method, chunk.block(factored(plan, panel).top), 0)
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


def _spans(plan: SlabPlan, place: Columns) -> tuple[list[_Span], list[_Span]]:
    """Cut the columns of a slab that are eliminated, and the others, into chunks."""
    if plan.kind in ("form q", "apply q"):
        return [], _cut(place.first, place.last)
    own = plan.eliminated(place)
    if plan.kind == "qr":  # each chunk is a block with a T of its own
        return [part[:2] for part in plan.parts(place)], _cut(own.last, place.last)
    return _cut(own.first, own.last), _cut(own.last, place.last)


def _cut(first: int, last: int) -> list[_Span]:
    width = last - first
    count = max(1, -(-width // _WIDEST), min(_PER_CORE * cores(), width // _NARROWEST))
    step = max(1, -(-width // (8 * count)) * 8)
    return [(start, min(start + step, last)) for start in range(first, last, step)]
