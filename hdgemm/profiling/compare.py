"""Comparison of two reports, for example before and after a driver update."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdgemm.errors import InputError
from hdgemm.profiling._samples import Change

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure of both reports, such as ``"ladder, initial, GFLOP/s"``, and its change."""

    figure: str
    change: Change

    @property
    def words(self) -> str:
        """Return the relative change, or that it is within the noise."""
        if not self.change.clear:
            return "too noisy to tell"
        return f"{100 * self.change.effect:+.1f} %"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Figures that two reports share, and the settings in which they differ."""

    differences: tuple[Difference, ...]
    settings: tuple[tuple[str, str, str], ...]

    def text(self) -> str:
        """Return the comparison as plain lines."""
        lines = [f"{name}: {old} → {new}" for name, old, new in self.settings]
        lines += [
            f"{row.figure:44} {row.change.old:10.3g} → {row.change.new:10.3g}  {row.words}"
            for row in self.differences
        ]
        clear = sum(row.change.clear for row in self.differences)
        lines.append(f"{clear} of {len(self.differences)} figures changed by more than the noise")
        return "\n".join(lines)


def load_report(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a report.json; raise `InputError` when it is not the report of a profile."""
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not the report of a profile: {error}") from error
    if not isinstance(report, dict) or "ladder" not in report or "bandwidth" not in report:
        raise InputError(f"{path} is not the report of a profile: no ladder and no bandwidth in it")
    return report


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Compare two reports, as `load_report` or `Profile.to_dict` return them."""
    before, after = dict(_figures(old)), dict(_figures(new))
    rows = [
        Difference(name, Change(value, after[name][0], max(spread, after[name][1])))
        for name, (value, spread) in before.items()
        if name in after
    ]
    rows.sort(key=lambda row: (not row.change.clear, -abs(row.change.effect)))
    return Comparison(tuple(rows), tuple(_settings(old, new)))


def _figures(report: Mapping[str, Any]) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield names with medians and spreads."""
    for part in ("ladder", "scaling"):
        for name, row in report.get(part, {}).items():
            yield f"{part}, {name}, GFLOP/s", (row["gflops"], row.get("spread", 0.0))
    for stage, row in report.get("bandwidth", {}).items():
        spread = row.get("spread", 0.0)
        for what in ("alone", "contended"):
            yield f"{stage} {what}, {row.get('unit', 'GB/s')}", (row[what], spread)
    for row_name, cells in report.get("matrix", {}).items():
        for column, cell in cells.items():
            yield f"{row_name} beside {column}, part kept", (cell["median"], cell["spread"])


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in ("device", "product", "machine", "versions"):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            for key in {**before, **after}:
                if before.get(key) != after.get(key):
                    yield f"{name}, {key}", str(before.get(key)), str(after.get(key))
        elif before != after:
            yield name, str(before), str(after)
