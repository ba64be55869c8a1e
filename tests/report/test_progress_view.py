"""What the terminal shows while a product runs, and what a log gets instead."""

import io

import pytest
from rich.console import Console

from hdgemm.progress import Progress
from hdgemm.progress_view import LiveBar, PlainLines, describe, show_progress


def at(percent, **changes):
    values = {
        "gflops": 123.45,
        "elapsed": 10.0,
        "eta": 75.0,
        "limit": "mult1",
        "steps": 3,
        "total_steps": 9,
    }
    return Progress(percent=percent, **{**values, **changes})


def console(*, terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)


def test_the_words_hold_speed_eta_and_bottleneck():
    assert describe(at(40.0)) == "123 GFLOP/s · ETA 1 min 15 s · bottleneck mult1"
    assert "ETA –" in describe(at(0.0, eta=None))
    assert "ETA 2.50 s" in describe(at(40.0, eta=2.5))
    assert "ETA 1 h 2 min" in describe(at(40.0, eta=3725.0))
    assert "bottleneck" not in describe(at(0.0, limit=None))
    assert "ETA" not in describe(at(100.0, eta=0.0))


def test_a_log_gets_plain_lines_and_few():
    out = console(terminal=False)
    view = show_progress("C.npy", console=out)
    assert isinstance(view, PlainLines)
    with view:
        for tenth in range(1001):
            view(at(tenth / 10))
    lines = out.file.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("C.npy   0.0 %")
    assert lines[-1].startswith("C.npy 100.0 %")
    assert "\x1b" not in out.file.getvalue()
    assert "\r" not in out.file.getvalue()


def test_a_log_gets_the_end_after_a_jump():
    out = console(terminal=False)
    with show_progress("C", console=out) as view:
        for percent in (3.0, 57.0, 58.0, 100.0):
            view(at(percent))
    assert [line.split()[1] for line in out.file.getvalue().splitlines()] == [
        "3.0",
        "57.0",
        "100.0",
    ]


def test_a_terminal_gets_a_bar_that_is_redrawn():
    out = console(terminal=True)
    with show_progress("C.npy", console=out) as view:
        assert isinstance(view, LiveBar)
        view(at(40.0))
        view(at(60.0))
    shown = out.file.getvalue()
    assert "60.0 %" in shown
    assert "bottleneck mult1" in shown
    assert "\x1b[?25h" in shown  # the cursor is given back


def test_the_terminal_is_left_as_it_was_after_an_error():
    out = console(terminal=True)
    with pytest.raises(KeyboardInterrupt), show_progress("C.npy", console=out):
        raise KeyboardInterrupt
    assert out.file.getvalue().rstrip().endswith("\x1b[?25h")
