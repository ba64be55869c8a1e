"""Checksums of C tiles: silent on clean ones, and loud on every error above the stated bound."""

import ctypes
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hdgemm.errors import WrongTileError
from hdgemm.pipeline.devices import host
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.host_blas import Gemm
from hdgemm.pipeline.devices.protocol import view
from hdgemm.pipeline.devices.recording import RecordingDevice, flip_bit
from tests.counting import nth_call
from tests.pipeline.abft.tile_case import LADDER, Case
from tests.reference import DTYPES

plans = {
    "extents": st.tuples(*[st.sampled_from([1, 2, 3, 5, 7, 11, 13])] * 3),
    "tile": st.tuples(*[st.integers(1, 5)] * 3),
    "dtype": st.sampled_from(DTYPES),
    "strategy": st.sampled_from(LADDER),
    "trans": st.tuples(st.booleans(), st.booleans()),
    "alpha": st.sampled_from([1.0, -2.5, 1e-3]),
    "beta": st.sampled_from([0.0, 1.0, -0.5]),
    "slots": st.tuples(*[st.integers(1, 3)] * 3),
    "depths": st.tuples(*[st.integers(1, 4)] * 2),
    "unified": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
}


@settings(max_examples=80, deadline=None)
@given(**{name: each for name, each in plans.items() if name not in ("extents", "tile")},
       extents=plans["extents"], tile=plans["tile"])  # fmt: skip
def test_clean_tiles_pass_whatever_the_plan(extents, tile, **plan):
    case = Case(extents, tile, **plan)
    found = case.run()
    case.check()
    assert found.tiles == len(case.plan.units)
    assert found.recomputed == 0
    assert found.worst <= 1


#: A C tile of 8×6 in two steps; the device multiplies two thin products before each step.
ONE = {"extents": (16, 18, 10), "tile": (8, 6, 5)}


def row_bound(case, row, rect):
    """The stated bound of a row of a tile, without slack: only for judging what must be found."""
    a, b = (np.abs(x.astype(complex)) for x in (case.a, case.b))
    cols = slice(rect.col, rect.col + rect.cols)
    size = a[row] @ np.linalg.norm(b[:, cols], axis=1)
    info = np.finfo(case.a.dtype)
    growth = 3 if case.a.dtype.kind == "c" else 1
    terms = 2 * case.a.shape[1] + 3 * rect.cols + 2 + 16
    return 1.02 * np.sqrt(rect.cols) * growth * terms * info.eps / 2 * abs(case.alpha) * size


@settings(max_examples=120, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    trans=st.tuples(st.booleans(), st.booleans()),
    unit=st.integers(0, 5),
    element=st.integers(0, 47),
    bit=st.integers(0, 127),
    beta=st.sampled_from([0.0, -0.5]),
    seed=st.integers(0, 1000),
)
def test_a_flipped_bit_in_a_c_tile_is_found_and_computed_again(
    dtype, trans, unit, element, bit, beta, seed
):
    case = Case(**ONE, dtype=dtype, trans=trans, beta=beta, seed=seed)
    number, changed = 3 * (2 * unit + 1) + 2, []

    def corrupt(kind, count, block):
        if (kind, count) == ("gemm", number):
            changed.append(flip_bit(block, element, bit % (8 * block.tile.dtype.itemsize)))

    found = case.run(RecordingDevice(corrupt=corrupt))
    assert found.tiles == 6
    before, after = changed[0]
    rect = case.plan.units[unit].rect
    size = abs(complex(after) - complex(before)) if np.isfinite(after) else np.inf
    if size > 2 * row_bound(case, rect.row + element // rect.cols, rect):
        assert found.recomputed == 1
    if found.recomputed:
        case.check()


@pytest.mark.parametrize("strategy", LADDER)
@pytest.mark.parametrize("operand", ["A", "B"])
@pytest.mark.parametrize("trans", [(False, False), (True, True)])
def test_a_flipped_bit_in_a_slot_is_found_in_every_tile_that_uses_it(strategy, operand, trans):
    case = Case(**ONE, strategy=strategy, trans=trans)
    hit = []

    def corrupt(kind, _count, block):
        if (
            kind == "upload"
            and block.tile.operand == operand
            and min(block.tile.rows, block.tile.cols) > 1
        ):
            if len(hit) == 2:
                flip_bit(block, 0, 62)
            hit.append(block)

    found = case.run(RecordingDevice(corrupt=corrupt))
    assert found.recomputed >= 1
    case.check()


def test_a_tile_that_stays_wrong_stops_the_run_with_the_numbers():
    case = Case(**ONE)

    def corrupt(kind, _count, block):
        if kind == "gemm" and (block.rows, block.cols) == (8, 6):
            view(block)[3, 4] += 1.0

    with pytest.raises(WrongTileError, match="recording computed a wrong C tile") as caught:
        case.run(RecordingDevice(corrupt=corrupt))
    error = caught.value
    assert (error.device, error.tile, error.row, error.col) == ("recording", (0, 0, 8, 6), 3, None)
    assert error.deviation == pytest.approx(3.0, abs=2.1)
    assert 0 < error.bound < 1e-10
    assert np.isnan(case.out).all()


class FailingHost(HostDevice):
    """A host whose memory changes while it multiplies."""

    def __init__(self, change):
        super().__init__()
        self.change, self.calls = change, 0

    def gemm(self, alpha, a, b, beta, c, after):
        """Change operands before, or the result after, as `change` says."""
        self.calls += 1
        self.change("before", self.calls - 1, (a, b, c))
        done = super().gemm(alpha, a, b, beta, c, after)
        self.change("after", self.calls - 1, (a, b, c))
        return done


@pytest.mark.parametrize("trans", [(False, False), (True, True)])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_the_host_finds_changes_in_its_slots(trans, which, beta):
    case = Case(**ONE, trans=trans, unified=True, beta=beta)

    def change(when, call, blocks):
        if call == 3 and when == ("after" if which == 2 else "before"):
            flip_bit(blocks[which], 7, 61)

    found = case.run(FailingHost(change))
    assert found.recomputed >= 1
    case.check()


def spoiled(case, kind, seed):
    """Put what overflows, or NaN and Inf, where they trouble a check."""
    rng = np.random.default_rng(seed)
    info = np.finfo(case.a.dtype)
    for x in (case.a, case.b):
        if kind == "scaled":
            exponents = rng.integers(info.minexp // 2, info.maxexp // 2 - 4, x.shape)
            x[...] *= (2.0**exponents).astype(x.real.dtype)
        elif kind == "overflow":
            x[...] *= x.dtype.type(float(info.max) ** 0.5 * rng.choice([0.01, 4.0]))
        else:
            places = rng.integers(0, x.size, 2)
            x.flat[places] = rng.choice([np.nan, np.inf, -np.inf], 2)
    return case


@pytest.mark.campaign
@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(["scaled", "overflow", "nonfinite"]), **plans)
def test_no_false_alarm_on_hard_data(kind, **plan):
    with np.errstate(all="ignore"):
        case = spoiled(Case(**plan), kind, plan["seed"])
        found = case.run()
    assert found.tiles == len(case.plan.units)
    assert found.recomputed == 0


@pytest.mark.parametrize("unified", [False, True])
def test_nan_leaves_other_rows_and_columns_checked(unified):
    case = Case(**ONE, unified=unified)
    case.a[3, 2], case.b[4, 5] = np.nan, np.inf
    found = case.run()
    assert found.recomputed == 0
    assert (found.unchecked_rows, found.unchecked_cols) == (3, 2)
    case.check()

    def change(when, call, blocks):
        if when == "after" and call == 1:
            view(blocks[2])[1, 2] += 1e-3

    def corrupt(kind, count, block):
        if kind == "gemm" and count == 5:
            view(block)[1, 2] += 1e-3

    found = case.run(FailingHost(change) if unified else RecordingDevice(corrupt=corrupt))
    assert found.recomputed == 1
    case.check()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_out_of_nowhere_and_nan_that_is_missing_are_errors(value):
    case = Case(**ONE, unified=True)

    def appear(when, call, blocks):
        if when == "after" and call == 1:
            view(blocks[2])[1, 2] = value

    assert case.run(FailingHost(appear)).recomputed == 1
    case.a[1, 2] = value

    def vanish(when, call, blocks):
        if when == "after" and call == 1:
            view(blocks[2])[1, 2] = 1.0

    assert case.run(FailingHost(vanish)).recomputed == 1
    case.check()


@settings(max_examples=120, deadline=None)
@given(
    operand=st.sampled_from(["A", "B"]),
    dtype=st.sampled_from(DTYPES),
    trans=st.tuples(st.booleans(), st.booleans()),
    element=st.integers(0, 29),
    bit=st.integers(0, 127),
    seed=st.integers(0, 1000),
)
def test_a_flipped_bit_in_a_slot_is_found_where_it_moves_c_above_the_bound(
    operand, dtype, trans, element, bit, seed
):
    case = Case((8, 6, 10), (8, 6, 5), dtype=dtype, trans=trans, seed=seed)
    changed = []

    def corrupt(kind, _count, block):
        tile = block.tile
        whole = min(tile.rows, tile.cols) > 1
        if kind == "upload" and tile.operand == operand and whole and not changed:
            at = element % (block.rows * block.cols)
            row, col = divmod(at, block.cols)
            place = (col, row) if tile.trans else (row, col)
            changed.append((place, *flip_bit(block, at, bit % (8 * tile.dtype.itemsize))))

    found = case.run(RecordingDevice(corrupt=corrupt))
    (row, col), before, after = changed[0]
    with np.errstate(all="ignore"):
        delta = case.alpha * np.abs(complex(after) - complex(before))
        a, b = np.abs(case.a.astype(complex)), np.abs(case.b.astype(complex))
        p = 5 if first_load_is_last(case, operand) else 0
        if operand == "A":
            # One row of C is off; each column holds one wrong element.
            off, bound = delta * b[p + col], col_bounds(case, a, b)
        else:
            off = delta * a[:, p + row]
            bound = np.array([row_bound(case, i, case.plan.units[0].rect) for i in range(8)])
        certain = not np.isfinite(after) or bool((off > 2.02 * bound).any())
    if certain:
        assert found.recomputed == 1
    if found.recomputed:
        case.check()


def first_load_is_last(case, operand):
    """Say whether the first tile of an operand that is loaded holds the end of k."""
    load = next(load for load in case.plan.course.loads() if load.operand == operand)
    return (load.rect.col if operand == "A" else load.rect.row) > 0


def col_bounds(case, a, b):
    """The stated bounds of the columns of a tile that is all of C."""
    size = np.linalg.norm(a, axis=0) @ b
    m, k = a.shape
    info = np.finfo(case.a.dtype)
    growth = 3 if case.a.dtype.kind == "c" else 1
    terms = 2 * k + 3 * m + 2 + 16
    return 1.02 * np.sqrt(m) * growth * terms * info.eps / 2 * abs(case.alpha) * size


@pytest.mark.parametrize("wrong", [False, True])
def test_a_tile_is_inspected_after_its_drawn_blocks_are_done(wrong, monkeypatch):
    monkeypatch.setattr(host, "_WORTH_DRAWING", 0)
    right, fourth = Gemm.run, nth_call(4)

    def slow(gemm):
        time.sleep(0.01)
        right(gemm)
        if fourth() and wrong:
            np.ctypeslib.as_array((ctypes.c_double * 1).from_address(gemm.c))[0] += 1.0

    monkeypatch.setattr(Gemm, "run", slow)
    case = Case(**ONE, unified=True)
    assert case.run().recomputed == wrong
    case.check()
