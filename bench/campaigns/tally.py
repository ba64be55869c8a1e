"""Counts of a campaign, what was wrong, and the exit status that follows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.harness import environment, save

if TYPE_CHECKING:
    import argparse

#: Sentences about wrong outcomes that are shown.
_SHOWN = 20


@dataclass
class Tally:
    """Outcomes by name, sentences about wrong ones, and figures of the campaign."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def check(self, holds: object, what: str) -> None:
        """Count one check; note what is wrong where it does not hold."""
        self.counts["checks"] += 1
        if not holds:
            self.wrong.append(what)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            **self.figures,
            "counts": dict(self.counts),
            "wrong": len(self.wrong),
            "examples": self.wrong[:_SHOWN],
        }

    def end(self, name: str, asked: argparse.Namespace) -> int:
        """Print the counts as JSON, save them where ``--save`` was given; return the status."""
        print(json.dumps(self.to_dict(), indent=2))
        if asked.save:
            save(f"campaign_{name}", self.to_dict(), environment())
        return 1 if self.wrong else 0


def add_save(parser: argparse.ArgumentParser) -> None:
    """Add the option that all campaigns take."""
    parser.add_argument("--save", action="store_true", help="write bench/results/campaign_*.json")
