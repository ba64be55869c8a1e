"""The user's cache folder and its JSON files, which may be missing or damaged at any time."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """Return the folder of cached measurements: ``HDGEMM_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("HDGEMM_CACHE")
    return Path(chosen) if chosen else user_cache_path("hdgemm")


def read_entries(name: str) -> dict[str, Any]:
    """Return a cache file's entries; a file that is missing or damaged has none."""
    try:
        entries = json.loads((cache_folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def write_entry(name: str, key: str, value: Any) -> None:
    """Put one entry into a cache file; a folder that cannot be written is no error."""
    path = cache_folder() / name
    entries = read_entries(name) | {key: value}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replacing is atomic: a reader sees the whole old file or the whole new one.
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8"
        ) as new:
            draft = Path(new.name)
            try:
                json.dump(entries, new, indent=1)
                new.flush()
                draft.replace(path)
            except OSError:
                draft.unlink(missing_ok=True)
                raise
