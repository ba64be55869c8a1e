"""Sizes, durations, operation counts and rates as text, with three significant digits."""

from __future__ import annotations

from typing import Final

_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400


def format_size(nbytes: float | None) -> str:
    """Write a number of bytes: ``"1.50 GB"``."""
    return "not measured" if nbytes is None else _prefixed(nbytes, "B")


def round_up(nbytes: int) -> int:
    """Return a number of bytes with three significant digits, rounded up: so many are enough."""
    step: int = 10 ** max(0, len(str(nbytes)) - 3)
    return -(-nbytes // step) * step


def format_flops(count: float) -> str:
    """Write a number of floating-point operations: ``"563 TFLOP"``."""
    return _prefixed(count, "FLOP")


def format_speed(gflops: float) -> str:
    """Write a speed given in 10⁹ operations per second: ``"102 GFLOP/s"``."""
    return _prefixed(gflops * 1e9, "FLOP/s")


def format_rate(nbytes_per_second: float) -> str:
    """Write a transfer rate given in bytes per second: ``"1.53 GB/s"``."""
    return _prefixed(nbytes_per_second, "B/s")


def format_duration(seconds: float | None) -> str:
    """Write a duration given in seconds: ``"85.0 ms"``, ``"12.3 s"``, ``"2 h 0 min"``."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        small, unit = (seconds * 1e3, "ms") if seconds >= 0.9995e-3 else (seconds * 1e6, "µs")
        return f"{_three_digits(small)} {unit}" if seconds > 0 else "0 s"
    if seconds < _MINUTE - 0.05:
        return f"{_three_digits(seconds)} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    minutes = round(whole / _MINUTE)
    if minutes * _MINUTE < _DAY:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(whole / _HOUR)
    return f"{hours // 24} d {hours % 24} h"


def format_count(count: int, noun: str) -> str:
    """Write how many there are of something: ``"1 slab"``, ``"2 slabs"``, ``"0 slabs"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _prefixed(value: float, unit: str) -> str:
    for size, prefix in _PREFIXES:
        if value >= 0.9995 * size:
            return f"{_three_digits(value / size)} {prefix}{unit}"
    return f"{value:.0f} {unit}" if value == round(value) else f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
