"""Servers that tests of several modules share, and a service in the test's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.server.harness import InProcess, Live, application, live, make_settings
from tests.server.numpy_library import DELAY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastapi import FastAPI

    from hdgemm.server.settings import Settings


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a worker and quick jobs, for tests that neither stop nor fill it."""
    settings = make_settings(tmp_path_factory.mktemp("shared"), sample_seconds=0.05)
    with live(settings, **{DELAY: "0.02"}) as started:
        yield started


@pytest.fixture(scope="package")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that computes with hdgemm itself, with a 700 by 500 matrix and one of 500 by 600."""
    settings = make_settings(
        tmp_path_factory.mktemp("real"), library="hdgemm.server.hdgemm_backend:HdgemmLibrary"
    )
    rng = np.random.default_rng(4)
    np.save(settings.roots[0] / "a.npy", rng.standard_normal((700, 500)))
    np.save(settings.roots[0] / "b.npy", np.asfortranarray(rng.standard_normal((500, 600))))
    with live(settings) as started:
        yield started


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a service of one test, with a matrix a.npy in its root."""
    chosen = make_settings(tmp_path)
    np.save(chosen.roots[0] / "a.npy", np.eye(3))
    return chosen


@pytest.fixture
def app(settings: Settings) -> Iterator[FastAPI]:
    """The application of these settings."""
    with application(settings) as made:
        yield made


@pytest.fixture
def client(app: FastAPI) -> InProcess:
    """A client of it, without a token."""
    return InProcess(app)
