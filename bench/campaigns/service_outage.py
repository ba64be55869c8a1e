"""PostgreSQL crashes again and again under running jobs: requests answer 503, no job is lost.

python -m bench.campaigns.service_outage [--outages 3] [--seconds 10]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.campaigns.tally import Tally, add_save
from tests.server import postgres
from tests.server.harness import finished, live, make_settings, submit, wait_until
from tests.server.numpy_library import DELAY

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; status 2 where PostgreSQL is not installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outages", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=6)
    add_save(parser)
    asked = parser.parse_args(arguments)
    try:
        url = postgres.new_database()
    except postgres.NoPostgresError as why:
        print(why, file=sys.stderr)
        return 2
    answers: Counter[int] = Counter()
    with tempfile.TemporaryDirectory(prefix="hdgemm-outage-") as name:
        settings = make_settings(Path(name), database_url=url, lease_seconds=20.0)
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
            ended = [finished(server.http, job_id) for job_id in ids]
        tally = Tally()
        for number, job in enumerate(ended):
            tally.counts[str(job["status"])] += 1
            tally.counts["attempts"] += job["attempt"]
            path = settings.roots[0] / f"c{number}.npy"
            right = path.exists() and np.allclose(np.load(path), a @ a)
            tally.check(right, f"job {number} is {job['status']}, its result missing or wrong")
        left = [path.name for path in settings.roots[0].iterdir() if path.name.startswith(".")]
    tally.check(not left, f"temporary files are left: {left}")
    tally.check(answers.keys() <= {200, 503}, "a request was answered otherwise than by 503")
    tally.figures |= {
        "outages": asked.outages, "seconds": asked.seconds, "answers meanwhile": dict(answers),
    }  # fmt: skip
    return tally.end("service_outage", asked)


if __name__ == "__main__":
    sys.exit(main())
