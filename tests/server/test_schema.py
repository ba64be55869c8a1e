"""The OpenAPI document and the server agree: the short form of bench.campaigns.service_schema."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from bench.campaigns.service_schema import prepare, run

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        shutil.which("schemathesis", path=str(Path(sys.executable).parent)) is None,
        reason="schemathesis is not installed",
    ),
]


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    server, secret = prepare(tmp_path)
    try:
        done = run(
            server, secret, 1, 3, tmp_path,
            "--phases", "examples,fuzzing,stateful", "--max-time", "4",
        )  # fmt: skip
    finally:
        server.close()
    assert done.returncode == 0, done.stdout[-6000:]
