"""Long jobs keep a journal: a killed one continues, and nothing of it is left over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.server.harness import (
    finished,
    live,
    make_settings,
    newest_runner,
    submit,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.harness import Live

N = 1000
A, B = {"path": "a.npy"}, {"path": "b.npy"}
#: Each tile is durable before the next but one: so many take seconds on any machine.
TILES = 800
OPTIONS = {"tile": [25, 50, N], "host_memory": "20MB", "threads": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings = make_settings(
        tmp_path_factory.mktemp("durable"),
        library="hdgemm.server.hdgemm_backend:HdgemmLibrary",
        journal_seconds=0.0,
        retention_seconds=3600.0,
    )
    rng = np.random.default_rng(4)
    for name in ("a", "b"):
        np.save(settings.roots[0] / f"{name}.npy", rng.standard_normal((N, N)))
    with live(settings) as started:
        yield started


def kill_at(server: Live, job_id: str, percent: float) -> None:
    """Kill the job's process when so much is done."""

    def far() -> bool:
        job = server.http.get(f"/v1/jobs/{job_id}").json()
        assert job["status"] in {"accepted", "running"}, job
        return (job["detail"] or {}).get("percent", 0.0) >= percent

    # Looked for first: a search of all processes takes long enough for a job to end.
    wait_until(lambda: server.http.get(f"/v1/jobs/{job_id}").json()["phase"] == "multiplying")
    process = wait_until(lambda: newest_runner(server.settings))
    wait_until(far, every=0.01)
    process.kill()


def test_a_killed_job_continues(server: Live) -> None:
    root = server.settings.roots[0]
    job_id = submit(server.http, a=A, b=B, output={"path": "c.npy"}, options=OPTIONS)
    kill_at(server, job_id, 40.0)
    job: dict[str, Any] = finished(server.http, job_id)
    assert (job["status"], job["attempt"]) == ("successful", 2), job["error"]
    found = job["report"]["resumption"]
    assert found["tiles"] == TILES
    assert found["kept"] >= 0.3 * TILES
    # All tiles may have been stored before the kill reached the process.
    multiplied = job["report"]["stages"].get("mult1", {"operations": 0})
    assert multiplied["operations"] <= TILES - found["kept"]
    expected = np.load(root / "a.npy") @ np.load(root / "b.npy")
    np.testing.assert_allclose(np.load(root / "c.npy"), expected, atol=1e-10)
    assert sorted(path.name for path in root.iterdir()) == ["a.npy", "b.npy", "c.npy"]
    assert not (server.settings.job_dir(job_id) / "journal").exists()
    assert job["expires"] > job["finished"]


@pytest.mark.campaign
def test_a_job_whose_input_changed_begins_again(server: Live) -> None:
    root = server.settings.roots[0]
    np.save(root / "x.npy", np.load(root / "a.npy"))
    job_id = submit(server.http, a={"path": "x.npy"}, b=B, options=OPTIONS)
    kill_at(server, job_id, 30.0)
    np.save(root / "x.npy", np.eye(N))
    job = finished(server.http, job_id)
    assert (job["status"], job["attempt"]) == ("successful", 2), job["error"]
    content = server.http.get(f"/v1/jobs/{job_id}/results/c").content
    np.testing.assert_allclose(
        np.frombuffer(content[-8 * N * N :]).reshape(N, N), np.load(root / "b.npy"), atol=1e-10
    )


def test_a_cancelled_job_leaves_nothing(server: Live) -> None:
    root = server.settings.roots[0]
    output = {"path": "d.npy"}
    job_id = submit(server.http, a=A, b=B, output=output, options=OPTIONS)
    kill_at(server, job_id, 30.0)
    server.http.post(f"/v1/jobs/{job_id}/cancel")
    assert finished(server.http, job_id)["status"] == "dismissed"
    wait_until(lambda: not any(f".hdgemm-{job_id}" in one.name for one in root.iterdir()))
    assert not (server.settings.job_dir(job_id) / "journal").exists()
