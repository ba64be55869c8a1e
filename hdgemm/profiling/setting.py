"""What a profile belongs to: the machine, versions, the command, the time."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hdgemm.profiling.other_load import describe_machine
from hdgemm.report import versions


def setting(*, device: str, shape: tuple[int, int, int], place: str, source: str) -> dict[str, Any]:
    """Return plain values, ready for JSON.

    Parameters
    ----------
    place
        ``"memory"`` or ``"file"``: where A, B and C lie.
    source
        Where the rates come from.
    """
    m, n, k = shape
    return {
        "device": device,
        "product": {"m": m, "n": n, "k": k, "dtype": "float64", "place": place},
        "rates_from": source,
        "machine": describe_machine(),
        "versions": dict(versions()),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
