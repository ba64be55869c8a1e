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
    entries = read_entries(name) | {key: value}
    with suppress(OSError):
        replace_file(cache_folder() / name, json.dumps(entries, indent=1).encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file by renaming a complete one: a reader sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(data)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
