"""Numbers as people read them: three digits, the right prefix, at every boundary."""

import pytest

from hdgemm.tables import Table
from hdgemm.units import (
    format_count,
    format_duration,
    format_flops,
    format_rate,
    format_size,
    format_speed,
)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (12_345_678, "12.3 MB"),
        (999_499_999, "999 MB"),
        (999_500_000, "1.00 GB"),
        (400_000_000, "400 MB"),
        (6_442_450_944, "6.44 GB"),
        (5 * 10**15, "5.00 PB"),
        (5 * 10**18, "5000 PB"),
        (None, "not measured"),
    ],
)
def test_sizes(nbytes, text):
    assert format_size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (2.5e-6, "2.50 µs"),
        (9.996e-4, "1.00 ms"),
        (0.123, "123 ms"),
        (0.9996, "1.00 s"),
        (9.999, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (75, "1 min 15 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (7200, "2 h 0 min"),
        (86399, "1 d 0 h"),
        (100 * 3600, "4 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_operations_and_rates():
    assert format_flops(2 * 65536**3) == "563 TFLOP"
    assert format_speed(102.4) == "102 GFLOP/s"
    assert format_speed(2500) == "2.50 TFLOP/s"
    assert format_speed(0) == "0 FLOP/s"
    assert format_rate(1.53e9) == "1.53 GB/s"


def test_tables_align_numbers_right_and_words_left():
    rows = [("a", "10", "x"), ("long", "5", "yy")]
    assert Table(("name", "n", "w"), rows).lines() == [
        "name   n   w",
        "a     10   x",
        "long   5  yy",
    ]
    assert Table(("name", "n", "w"), rows, title="T", text=True).lines()[::3] == [
        "T",
        "long  5   yy",
    ]
    assert Table(("a",), [("<x>",)], title="T").html().count("&lt;x&gt;") == 1


def test_one_thing_is_singular():
    assert [format_count(n, "slab") for n in (0, 1, 2)] == ["0 slabs", "1 slab", "2 slabs"]
