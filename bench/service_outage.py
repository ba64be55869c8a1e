"""PostgreSQL crashes again and again under running jobs: requests answer 503, no job is lost.

python -m bench.service_outage --outages 3 --seconds 10
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from hdgemm.server.numpy_backend import DELAY
from tests.server import postgres
from tests.server.harness import finished, live, make_settings, submit, wait_until


def main() -> None:
    """Run and print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outages", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=6)
    asked = parser.parse_args()
    answers: Counter[int] = Counter()
    with tempfile.TemporaryDirectory(prefix="hdgemm-outage-") as name:
        settings = make_settings(
            Path(name), database_url=postgres.new_database(), lease_seconds=20.0, max_crashes=50
        )
        a = np.random.default_rng(1).standard_normal((40, 40))
        np.save(settings.roots[0] / "a.npy", a)
        operand = {"path": "a.npy"}
        with live(settings, **{DELAY: "0.3"}) as server:
            ids = [
                submit(server.http, a=operand, b=operand, output={"path": f"c{number}.npy"})
                for number in range(asked.jobs)
            ]
            for _ in range(asked.outages):
                wait_until(lambda: server.http.get("/v1/jobs?status=running").json().get("jobs"))
                until = time.monotonic() + asked.seconds
                with postgres.outage():
                    while time.monotonic() < until:
                        for at in ("/v1/jobs", f"/v1/jobs/{ids[0]}", "/readyz", "/metrics"):
                            answers[server.http.get(at).status_code] += 1
                wait_until(lambda: server.http.get("/readyz").status_code == 200)
            ended = [finished(server.http, job_id, 300) for job_id in ids]
        right = sum(
            np.allclose(np.load(settings.roots[0] / f"c{number}.npy"), a @ a)
            for number in range(asked.jobs)
        )
        left = [path.name for path in settings.roots[0].iterdir() if path.name.startswith(".")]
    statuses = Counter(str(job["status"]) for job in ended)
    attempts = sum(job["attempt"] for job in ended)
    print(
        json.dumps({
            "outages": asked.outages, "seconds": asked.seconds, "jobs": dict(statuses),
            "right": right, "attempts": attempts, "answers meanwhile": dict(answers), "left": left,
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
