"""A block copy and a product as driver calls: pure functions, held against NumPy."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hdgemm.errors import DeviceError, InputError, InputTypeError
from hdgemm.pipeline.devices.cuda._calls import (
    MAX_PITCH,
    Rows,
    copy_calls,
    gemm_call,
    routine,
    trsm_call,
)
from hdgemm.pipeline.devices.protocol import Block, Tile, Triangle


def bytes_touched(calls, side):
    """Byte offsets in the order in which the calls take them."""
    found = []
    for call in calls:
        rows = getattr(call, side)
        for row in range(call.rows):
            first = rows.address + row * rows.pitch
            found.extend(range(first, first + call.width))
    return found


@given(
    st.integers(0, 5),
    st.integers(0, 7),
    st.integers(-20, 20),
    st.integers(-20, 20),
)
def test_calls_copy_every_byte_to_its_place(rows, width, target_pitch, source_pitch):
    target, source = Rows(1000, target_pitch), Rows(5000, source_pitch)
    calls = copy_calls(target, source, width, rows)
    wanted = [(row, byte) for row in range(rows) for byte in range(width)]
    assert bytes_touched(calls, "target") == [1000 + r * target_pitch + b for r, b in wanted]
    assert bytes_touched(calls, "source") == [5000 + r * source_pitch + b for r, b in wanted]
    for call in calls:
        if call.rows > 1:
            assert width <= min(call.target.pitch, call.source.pitch)


@pytest.mark.parametrize(
    ("target_pitch", "source_pitch", "shapes"),
    [
        (64, 64, [(192, 1)]),  # dense on both sides: one plain copy
        (64, 80, [(64, 3)]),
        (MAX_PITCH, 64, [(64, 3)]),
        (MAX_PITCH + 1, 64, [(64, 1)] * 3),  # more than the driver's pitch: a row each
        (-64, 64, [(64, 1)] * 3),  # rows stored upwards
        (0, 64, [(64, 1)] * 3),
    ],
)
def test_calls_are_the_fewest_the_driver_takes(target_pitch, source_pitch, shapes):
    calls = copy_calls(Rows(0, target_pitch), Rows(0, source_pitch), 64, 3)
    assert [(call.width, call.rows) for call in calls] == shapes


def test_a_matrix_over_4_gib_keeps_its_offsets():
    pitch = 1 << 33
    calls = copy_calls(Rows(0, 8), Rows(0, pitch), 8, 3)
    assert [call.source.address for call in calls] == [0, pitch, 2 * pitch]


def block(rows, cols, *, trans=False, ld=None, dtype="float64", operand="A"):
    tile = Tile(operand, None, rows, cols, cols if ld is None else ld, np.dtype(dtype), trans)
    return Block(tile, 0, 0, rows, cols)


def call_of(a, b, c):
    return gemm_call((1, 2), a, b, c, (10, 20, 30))


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("trans_a", [False, True])
def test_a_row_major_product_is_the_transposed_column_major_one(trans_a, trans_b):
    m, n, k = 2, 3, 5
    a = block(*((k, m) if trans_a else (m, k)), trans=trans_a, ld=11)
    b = block(*((n, k) if trans_b else (k, n)), trans=trans_b, ld=13)
    call = call_of(a, b, block(m, n, ld=17))
    assert call == ("dgemm", int(trans_b), int(trans_a), n, m, k, 1, 20, 13, 10, 11, 2, 30, 17)


def test_every_dtype_has_its_routine():
    names = [routine(np.dtype(name)) for name in ("f4", "f8", "c8", "c16")]
    assert names == ["sgemm", "dgemm", "cgemm", "zgemm"]
    with pytest.raises(InputTypeError, match="float16"):
        routine(np.dtype("f2"))


def test_more_than_32_bits_is_an_error_with_the_numbers():
    big = 2**31
    with pytest.raises(InputError, match="2,147,483,648") as caught:
        call_of(block(1, big), block(big, 1), block(1, 1))
    assert (caught.value.requested, caught.value.available) == (big, big - 1)
    with pytest.raises(InputError, match="ldb"):
        call_of(block(2, 2, ld=big), block(2, 2), block(2, 2))
    edge = call_of(block(1, big - 1), block(big - 1, 1), block(1, 1))
    assert edge.k == big - 1


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        (block(2, 3), block(4, 5), block(2, 5)),
        (block(2, 3), block(3, 5), block(5, 2)),
        (block(2, 3), block(3, 2), block(2, 2, trans=True)),
    ],
)
def test_blocks_that_do_not_fit_together_are_refused(a, b, c):
    with pytest.raises(DeviceError, match="do not fit"):
        call_of(a, b, c)


def test_a_single_row_has_a_leading_dimension_that_blas_takes():
    call = call_of(block(1, 4, ld=1), block(4, 2), block(1, 2, ld=1))
    assert (call.ldb, call.ldc) == (4, 2)  # A goes second, and its ld is its row's length


def test_a_row_major_solve_is_the_transposed_column_major_one():
    a, b = block(3, 3, ld=11), block(3, 5, ld=13)
    call = trsm_call(1, a, b, Triangle("L", lower=True, trans="N", unit=True), (10, 20))
    assert call == ("dtrsm", 1, 1, 0, 1, 5, 3, 1, 10, 11, 20, 13)
    right = trsm_call(1, block(5, 5), b, Triangle("R", lower=False, trans="C", unit=False), (1, 2))
    assert right[:7] == ("dtrsm", 0, 0, 2, 0, 5, 3)
    with pytest.raises(InputError, match="cannot solve with 3×3 for 3×5 on side R"):
        trsm_call(1, a, b, Triangle("R", lower=True, trans="N", unit=True), (10, 20))
