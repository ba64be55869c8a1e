import inspect
import itertools
from contextlib import suppress
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm import linalg
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.linalg.planning import _pricing as pricing, search as planning, slab as slab_plan
from hdgemm.linalg.planning.search import Storage, plan_slabs
from hdgemm.linalg.planning.slab import SlabPlan
from hdgemm.machine.rates import HOST, Machine
from hdgemm.matrices.transfer import leading
from hdgemm.routines.registry import planned
from tests.linalg.tall import plan_tsqr

KINDS = ("cholesky", "lu")


def plan(kind, n, memory, **forced):
    return plan_slabs(kind, n, "float64", memory, HOST, **forced)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS), n=st.integers(0, 1200), most=st.integers(1, 1200),
    memory=st.integers(10**5, 10**8), dtype=st.sampled_from(("float32", "complex128")),
)  # fmt: skip
def test_slabs_cover_the_columns_and_fit_the_memory(kind, n, most, memory, dtype):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_MOST_SLABS", most)
        try:
            found = plan_slabs(kind, n, dtype, memory, HOST)
        except DoesNotFitError as error:
            # The memory that the error asks for is enough.
            memory += error.missing
            found = plan_slabs(kind, n, dtype, memory, HOST)
    assert found.host_bytes <= memory
    # Columns that begin on a block of the file may make slabs half as wide.
    assert len(found.slabs) <= 2 * most
    assert [slab.first for slab in found.slabs] == [0, *(s.last for s in found.slabs[:-1])][
        : len(found.slabs)
    ]
    assert sum(slab.width for slab in found.slabs) == n
    for number in {0, len(found.slabs) // 2, len(found.slabs) - 1} if n else ():
        numbered = list(found.blocks(number))
        blocks = [block for _, block in numbered]
        columns = [column for block in blocks for column in range(block.first, block.last)]
        assert columns == list(range(found.slabs[number].first))
        assert all(block.width <= found.block for block in blocks)
        assert sum(map(found.nbytes, blocks)) == found.earlier_bytes()[number]
        read = [b for of, b in numbered if not (found.holds_before(number) and of == number - 1)]
        assert sum(map(found.nbytes, read)) == found.streamed_bytes()[number]
        # A run that begins with this slab has none in memory.
        assert found.streamed_bytes(number)[0] == found.earlier_bytes()[number]
    assert found.to_dict()["flops"] == found.flops


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(("cholesky", "lu", "qr")), m=st.integers(1, 300), n=st.integers(1, 110),
    width=st.integers(1, 70), block=st.integers(1, 40), above=st.integers(0, 2000),
)  # fmt: skip
def test_short_columns_stream_whole(kind, m, n, width, block, above):
    m = n if kind == "cholesky" else m
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slab_plan, "_ABOVE", above)
        found = plan_slabs(kind, n, "float64", 10**8, HOST, rows=m, width=width, block=block,
                           storage=Storage(whole=True))  # fmt: skip
        tops = [
            [block._replace(top=found.read_top(block.top)) for _, block in found.blocks(number)]
            for number in range(len(found.slabs))
        ]
        assert found.earlier_bytes() == [sum(map(found.nbytes, blocks)) for blocks in tops]
        assert all(block.top == 0 or block.top * 8 > above for blocks in tops for block in blocks)


@given(
    widths=st.lists(st.integers(1, 30), max_size=8), block=st.integers(1, 12),
    backwards=st.booleans(), columns=st.lists(st.integers(0, 250)), exact=st.booleans(),
)  # fmt: skip
def test_blocks_are_those_of_the_slabs(widths, block, backwards, columns, exact):
    ends = [0, *itertools.accumulate(widths)]
    slabs = tuple(slab_plan.Columns(*pair, 0) for pair in itertools.pairwise(ends))
    blocks = slab_plan.Blocks(slabs, block, backwards)
    every = [
        slab_plan.Columns(first, min(first + block, slab.last), first)
        for slab in slabs
        for first in range(slab.first, slab.last, block)
    ]
    assert list(blocks) == (every[::-1] if backwards else every)
    assert blocks.last == sum(widths)
    if slabs:
        found = blocks.elements_before(columns, 300, np.int64 if exact else object)
        assert [*found] == [
            sum((300 - each.top) * each.width for each in every if each.first < column)
            for column in columns
        ]
    assert list(slab_plan.Blocks.from_values(asdict(blocks))) == list(blocks)
    assert list(slab_plan.Blocks.from_values(list(map(list, blocks)))) == list(
        blocks
    )  # as 0.2.0 wrote them


def test_long_columns_stream_from_the_row_that_is_needed():
    found = plan_slabs("lu", 40_000, "float64", 10**9, HOST, width=1024, block=512,
                       storage=Storage(whole=True))  # fmt: skip
    assert not found.whole
    assert found.read_top(512) == 512


def test_bytes_by_hand():
    n, width = 13, 5
    cholesky = plan("cholesky", n, 2 * 10**7, width=width, block=2)
    assert [slab.last for slab in cholesky.slabs] == [5, 10, 13]
    assert (cholesky.held, cholesky.slab_buffers) == (True, 2)
    # Trapezoids of 13, 8 and 3 rows; then 5 columns of 3 rows: the slab before is in memory.
    assert cholesky.planned_bytes["store2"] == 8 * (13 * 5 + 8 * 5 + 3 * 3)
    assert cholesky.planned_bytes["load1"] == cholesky.planned_bytes["store2"] + 8 * 5 * 3
    lu = plan("lu", n, 2 * 10**7, width=width, block=2)
    # Blocks of 2, 2 and 1 columns have the rows from their own diagonal on.
    first = 2 * 13 + 2 * 11 + 9
    last_pass = 5 * 13 + 5 * 13  # short columns are moved whole
    assert lu.planned_bytes["store2"] == 8 * (13 * 13 + last_pass)
    assert lu.planned_bytes["load1"] == 8 * (13 * 13 + first + last_pass)


def test_the_last_slab_takes_the_memory_of_both_buffers():
    machine = Machine(gemm={"float64": 1.4e11}, disk_read=2e9, disk_write=1e9)
    found = plan_slabs("lu", 8192, "float64", 200_000_000, machine)
    assert (found.slab_buffers, found.held) == (2, True)
    widths = [slab.width for slab in found.slabs]
    assert widths[0] < widths[-1] <= 2 * widths[0]
    assert found.host_bytes <= 200_000_000
    assert [found.takes_all(number) for number in range(len(widths))] == [
        *(False for _ in widths[1:]), True
    ]  # fmt: skip
    # The slab before lies in the same memory: the last one reads it.
    assert found.streamed_bytes()[-1] == found.earlier_bytes()[-1]
    assert SlabPlan.from_dict(found.to_dict()) == found


def test_what_fits_is_one_slab_without_a_stream():
    n = 1000
    assert plan("cholesky", n, 10**8).host_bytes <= 10**8
    alone = plan("lu", n, 10**9, width=n)
    assert len(alone.slabs) == 1
    assert alone.host_bytes < 8 * n * n + 2**25


def test_large_matrices_are_planned_as_the_issue_says():
    found = plan("lu", 65536, 1_500_000_000)
    assert found.host_bytes <= 1_500_000_000
    assert found.slab_buffers == 2
    # 2n³/3 at the assumed rate, with the disk hidden.
    ideal = found.flops / HOST.flop_rate("float64")
    assert ideal <= found.expected_seconds < 1.2 * ideal


def test_long_columns_are_interchanged_below_the_slab_only():
    found = plan("lu", 100_000, 10**9, width=500, block=128)
    assert found.interchanged[0].top == found.slabs[0].last
    assert found.interchanged[-1].top == 0


def test_slabs_begin_on_blocks_of_the_file():
    for kind in KINDS:
        found = plan(kind, 8192, 200_000_000)
        assert all(slab.first % 512 == 0 for slab in found.slabs if slab.width > 512)


def test_no_32_bit_trap():
    found = plan("lu", 100_000, 8_000_000_000, width=4000, block=512)
    assert found.planned_bytes["load1"] > 8 * 100_000**2
    assert found.flops == 2 * 100_000**3 // 3
    large = plan_slabs("lu", 1 << 18, "float32", 64 << 30, HOST)
    assert max(slab.width for slab in large.slabs) << 18 > 1 << 31  # elements of a slab
    assert sum(map(large.nbytes, large.slabs)) == 4 << 36


def test_leading_dimension_keeps_the_phase_of_the_file():
    assert leading(1000, 1000, 8) == 1000
    assert leading(999, 1000, 8) == 999
    rows, total = 40_001, 50_000
    lead = leading(rows, total, 8)
    assert lead >= rows
    assert (total - lead) * 8 % 4096 == 0
    assert lead <= total


@pytest.mark.parametrize("n", [10**6, 2 * 10**6, 10**7, 10**9])
def test_the_work_of_planning_is_bounded(n, monkeypatch):
    """A plan of 10⁷ columns did not end within 10 minutes."""
    widths = []

    def count(plan, *_rates):
        widths.append(len(plan.slabs))
        return plan

    monkeypatch.setattr(planning, "priced", count)
    for kind in KINDS:
        with suppress(DoesNotFitError):
            plan(kind, n, 8 * 10**9)
    assert sum(widths) < 400_000
    with pytest.raises(InputError, match=f"slabs of {-(-n // 2**13)} columns or more"):
        plan("lu", n, 8 * 10**9, width=1)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(("cholesky", "lu", "qr")),
    m=st.integers(1500, 3000),
    n=st.integers(1500, 3000),
    width=st.integers(1, 20),
    copies=st.booleans(),
)
def test_one_slab_of_each_run_prices_all_slabs(kind, m, n, width, copies):
    m = n if kind == "cholesky" else m
    storage = Storage(copies=copies, row_bytes=8 * n if copies else 0)
    found = plan(kind, n, 10**8, rows=m, width=width, block=8, storage=storage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pricing, "_RUNS", 10**6)
        every = pricing.priced(found, HOST)
    assert found.expected_seconds == pytest.approx(every.expected_seconds, rel=0.03)
    for phase in ("load", "update", "panel", "store"):
        seconds = every.expected_phase_seconds[phase]
        assert found.expected_phase_seconds[phase] == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize("kind", ["cholesky", "lu", "qr"])
def test_chunks_that_are_decoded_take_memory_from_the_slabs(kind):
    without = plan(kind, 3000, 60_000_000)
    found = plan(kind, 3000, 60_000_000, storage=Storage(decoding=28_800_000))
    assert found.host_bytes <= 60_000_000
    assert found.slabs[0].width < without.slabs[0].width
    # Half of the memory at most.
    most = plan(kind, 3000, 60_000_000, storage=Storage(decoding=10**9))
    assert most == plan(kind, 3000, 60_000_000, storage=Storage(decoding=30_000_000))


def test_the_slabs_that_are_priced_are_few(monkeypatch):
    """A search took 30 µs a slab of each plan: 3 s for an LU factorisation of order 10⁶."""
    slabs = []
    seconds = pricing._kernel_seconds

    def count(plan, slab, *rest):
        slabs.append(slab)
        return seconds(plan, slab, *rest)

    monkeypatch.setattr(pricing, "_kernel_seconds", count)
    found = plan("lu", 10**6, 8 * 10**9)
    assert len(found.slabs) > 2000
    assert len(slabs) < 3000


def test_errors_name_the_bytes():
    text = r"needs \d+ MB; host_memory is 1\.00 MB: raise it by \d+ MB"
    with pytest.raises(DoesNotFitError, match=text) as caught:
        plan("lu", 10_000, 10**6, width=5000)
    assert caught.value.missing == caught.value.requested - 10**6


@pytest.mark.parametrize("n", [64, 300, 1000])
def test_blocks_of_reflectors_are_not_narrower_than_their_tasks_allow(n):
    # With blocks of one column, a QR of order 300 was 45,150 tasks, and took 11 s.
    found = plan("qr", n, 4 * 10**7)
    assert found.block >= 16


def test_tsqr_is_priced_by_given_rates():
    plan = plan_tsqr(1000, 40, 1, 10**8, 2, rows=100)
    assert not plan.expected_phase_seconds
    rates = Machine(gemm={"float64": 1e9}, copy=1e6, disk_read=1e3)
    found = plan.priced(rates, in_file=True)
    expected = found.expected_phase_seconds
    assert expected["load"] == pytest.approx(1000 * 41 * 8 / 1e3 + 10 * 2.5e-4)
    # Each of two cores reduces one block of 100 rows first.
    assert expected["update"] == pytest.approx(4 * expected["panel"])
    handling = (plan.element_seconds + 10 * 2e-4) / 2
    assert plan.element_seconds == pytest.approx(1000 * 41 * 6e-9)
    assert expected["update"] + expected["panel"] == pytest.approx(plan.flops / 0.47e9 + handling)
    assert (found.expected_limit, found.expected_seconds) == ("disk", expected["load"])
    assert "limited by disk" in str(found)
    assert "update" in str(found)
    in_memory = plan.priced(Machine(gemm={"float64": 1e6}, copy=1e6), in_file=False)
    assert in_memory.expected_limit == "kernel"
    assert in_memory.expected_seconds == pytest.approx(plan.flops / 0.47e6 + handling)
    assert in_memory.expected_phase_seconds["load"] == pytest.approx(1000 * 41 * 8 / 1e6)


@pytest.mark.parametrize("kind", ["cholesky", "lu", "qr"])
@pytest.mark.parametrize("n", [100, 10_000])
@pytest.mark.parametrize("durable", [False, True])
def test_a_refusal_names_the_smallest_memory_that_works(kind, n, durable):
    with pytest.raises(DoesNotFitError) as refused:
        plan(kind, n, 1000, durable=durable)
    least = refused.value.requested
    assert plan(kind, n, least, durable=durable).host_bytes <= least
    for less in (least - 1, least * 99 // 100):
        with pytest.raises(DoesNotFitError):
            plan(kind, n, less, durable=durable)


@pytest.mark.parametrize("name", ["lstsq", "ridge"])
def test_a_triangle_that_does_not_fit_is_refused_with_its_bytes(name):
    options = hdgemm.Options(host_memory="8GB", devices="host")
    with pytest.raises(DoesNotFitError, match="TSQR of a 10000000×9000000 float64 matrix") as error:
        linalg.plan(name, (10**7, 9 * 10**6), columns=1, options=options)
    assert error.value.requested > 8 * (9 * 10**6) ** 2


@pytest.mark.parametrize("name", planned())
def test_a_plan_needs_no_argument_of_the_routine_and_its_documentation_names_it(name):
    extents = 40 if name in {"solve", "inv", "det"} else (60, 60)
    assert hdgemm.linalg.plan(name, extents, columns=20).host_bytes > 0
    assert f'"{name}"' in (inspect.getdoc(hdgemm.linalg.plan) or "")
