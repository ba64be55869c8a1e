"""Schemathesis against a real service: every check and phase, with a token and without.

python -m bench.campaigns.service_schema [--seeds 1 2 3] [--examples 50]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np

from bench.campaigns.tally import Tally, add_save
from hdgemm.server import tokens
from hdgemm.server.database import open_database
from tests.server.harness import Live, finished, make_settings, submit, upload

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Some refusals depend on facts outside the schema: whether files are there, shapes agree, the disk
#: has room (507). They are right answers to requests that fit the schema. A missing body may be
#: told by its range (416).
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [
  400, 401, 403, 404, 405, 406, 409, 413, 415, 416, 422, 428, 429, "5xx"
]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 507]
positive_data_acceptance.expected-statuses = [
  "2xx", 400, 401, 403, 404, 409, 413, 415, 416, 422, 507
]
"""
#: DELETE of an unfinished job cancels it, and the job stays, as OGC says. Tokens are declared for
#: every route, and not asked for while there are none.
_EXCLUDED = "use_after_free"
_WITHOUT_TOKEN = f"{_EXCLUDED},ignored_auth,missing_required_header"


def prepare(folder: Path, *, with_token: bool = True) -> tuple[Live, str]:
    """Start a service with a matrix and a job in it; return it and its token."""
    settings = make_settings(folder)
    database = open_database(settings)
    secret = "none"
    if with_token:
        with database.write() as conn:
            secret = tokens.create(conn, tokens.Account(name="schemathesis"), database.now(conn))
    database.close()
    np.save(settings.roots[0] / "a.npy", np.eye(8))
    server = Live(settings)
    if with_token:
        server.http.headers["Authorization"] = f"Bearer {secret}"
    server.wait()
    upload(server.http, np.eye(8))
    job = submit(server.http, a={"path": "a.npy"}, b={"path": "a.npy"})
    finished(server.http, job)
    return server, secret


def run(
    server: Live, secret: str, seed: int, examples: int, folder: Path, *more: str
) -> subprocess.CompletedProcess[str]:
    """Run schemathesis with one seed; `more` are arguments of its command line."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG, encoding="utf-8")
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config),
        "run", f"{server.url}/openapi.json", "--checks", "all", "--seed", str(seed),
        "--max-examples", str(examples), "-H", f"Authorization: Bearer {secret}",
        "--exclude-path-regex", "events$", "--generation-database", "none",
        "--suppress-health-check", "all", "--continue-on-failure", "--no-color",
        "--exclude-checks", _EXCLUDED if server.http.headers.get("Authorization")
        else _WITHOUT_TOKEN,
        "--request-timeout", "10", *more,
    ]  # fmt: skip
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all seeds, with a token and without; schemathesis's output goes to standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--examples", type=int, default=50)
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    for with_token in (True, False):
        how = "with a token" if with_token else "without a token"
        with tempfile.TemporaryDirectory(prefix="hdgemm-schema-") as name:
            folder = Path(name)
            server, secret = prepare(folder, with_token=with_token)
            try:
                for seed in asked.seeds:
                    done = run(server, secret, seed, asked.examples, folder)
                    print(done.stdout, done.stderr, file=sys.stderr)
                    tally.counts[how] += 1
                    tally.check(done.returncode == 0, f"seed {seed} {how}: {done.stdout[-1500:]}")
                alive = httpx.get(f"{server.url}/healthz").status_code
                tally.check(alive == 200, f"{how}: /healthz answers {alive}")
            finally:
                server.close()
    return tally.end("service_schema", asked)


if __name__ == "__main__":
    sys.exit(main())
