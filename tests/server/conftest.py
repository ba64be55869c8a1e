"""A server that tests of several modules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.harness import Live, live, make_settings
from tests.server.numpy_library import DELAY

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a worker and quick jobs, for tests that neither stop nor fill it."""
    settings = make_settings(tmp_path_factory.mktemp("shared"), sample_seconds=0.05)
    with live(settings, **{DELAY: "0.02"}) as started:
        yield started
