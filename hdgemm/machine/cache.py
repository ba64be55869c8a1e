"""The user's cache folder, and JSON kept there: whole or not at all, and never trusted."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """Return where measurements are kept: ``HDGEMM_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("HDGEMM_CACHE")
    return Path(chosen) if chosen else user_cache_path("hdgemm")


def read_entries(name: str) -> dict[str, Any]:
    """Return a cache file's entries; a file that is missing or broken has none."""
    try:
        entries = json.loads((cache_folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def write_entry(name: str, key: str, value: Any) -> None:
    """Put one entry into a cache file; a folder that cannot be written to is no error."""
    path = cache_folder() / name
    entries = read_entries(name) | {key: value}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replaced in one move: a reader sees the old file or the new one, never half of it.
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8", suffix=".json"
        ) as file:
            json.dump(entries, file, indent=1)
        Path(file.name).replace(path)
