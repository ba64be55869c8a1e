"""Quotas count everything that a token's matrices and jobs leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from hdgemm.server import jobs, quotas, tokens
from hdgemm.server.database import open_database
from hdgemm.server.tokens import Account
from tests.server.harness import (
    LIMIT,
    InProcess,
    finished,
    live,
    make_settings,
    newest_runner,
    submit,
    token,
    wait_until,
)
from tests.server.numpy_library import TRACE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI

    from hdgemm.server.tables import Job

A = {"path": "a.npy"}


def test_empty_matrices_and_jobs_without_a_result_count_against_the_quota(app: FastAPI) -> None:
    client = InProcess(app, token(app, "me", max_bytes=30_000))
    made = [client.post("/v1/matrices", json={"shape": [0, 5]}).status_code for _ in range(10)]
    assert made == [201] * 3 + [507] * 7
    other = InProcess(app, token(app, "other", max_bytes=5000))
    body = {"inputs": {"device": "host", "quick": True}}
    made = [other.post("/v1/processes/profile/execution", json=body).status_code for _ in range(2)]
    assert made == [201, 507]


def test_everything_that_a_job_leaves_counts_against_the_quota(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    np.save(settings.roots[0] / "a.npy", np.eye(3))
    database = open_database(settings)
    accounts = Account(name="roomy", max_bytes=1 << 30), Account(name="tight", max_bytes=9000)
    with database.write() as conn:
        secrets = [tokens.create(conn, account, 1.0) for account in accounts]

    def ended(secret: str, **inputs: Any) -> tuple[Job, dict[str, int], int]:
        """Run a job; return it, the sizes of its files, and the bytes that its owner uses."""
        headers = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=LIMIT) as client:
            job_id = submit(client, a=A, b=A, **inputs)
            finished(client, job_id)
        wait_until(lambda: newest_runner(settings) is None)  # its pictures are drawn and counted
        with database.read() as conn:
            job = jobs.find(conn, job_id)
            assert job is not None
            used = quotas.used_bytes(conn, job.owner)
        folder = settings.job_dir(job_id)
        # Links to operands name open files of the job's process by number, not this one's.
        own = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
        sizes = {path.name: path.stat().st_size for path in own}
        return job, sizes, used

    with live(settings, **{TRACE_BYTES: "50000"}) as server:
        job, sizes, used = ended(secrets[0])
        assert sizes["trace.json"] >= 50_000
        # The log may still grow, by a line.
        assert job.disk_bytes >= sum(sizes.values()) - sizes["log.txt"]
        assert used == job.disk_bytes + quotas.RECORD_BYTES
        failed, sizes, more = ended(secrets[0], options={"strategy": "initial"})
        assert (failed.status, more) == ("failed", used + failed.disk_bytes + quotas.RECORD_BYTES)
        assert failed.disk_bytes > 0
        job, sizes, used = ended(secrets[1])
        assert (job.status, "trace.json" in sizes, used < 9000) == ("successful", False, True)
    database.close()
