"""The campaigns in their short forms: each ends with counts and status 0."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.campaigns import disk_faults, full_disk, run_kills
from bench.campaigns.tally import Tally

pytestmark = pytest.mark.ci
ROOT = Path(__file__).resolve().parents[2]


def found_by(campaign, *options):
    """Return what a campaign prints that has a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"bench.campaigns.{campaign}", *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def counts_of(capfd):
    found = json.loads(capfd.readouterr().out)
    assert found["wrong"] == 0, found["examples"]
    return found["counts"]


@pytest.mark.parametrize(
    ("form", "mode", "every"),
    [("npy", "durable", "19"), ("hdf5", "new", "11"), ("zarr", "new", "11")],
)
def test_requests_that_fail(capfd, form, mode, every):
    if form in ("hdf5", "zarr"):
        pytest.importorskip("h5py" if form == "hdf5" else "zarr")
    assert disk_faults.main(["--every", every, "--format", form, "--mode", mode]) == 0
    # How many requests a run makes depends on its timing: nine to a dozen are hit.
    assert counts_of(capfd)["refused"] >= 5


@pytest.mark.parametrize(
    ("routine", "mode"), [("lu_factor", "durable"), ("qr", "new"), ("inv", "new")]
)
def test_requests_of_linear_algebra_that_fail(capfd, routine, mode):
    command = ["--every", "41", "--routine", routine, "--mode", mode]
    assert disk_faults.main(command) == 0
    assert counts_of(capfd)["refused"] >= 3


def test_requests_that_fail_without_a_compiler():
    """In a process of its own, since the functions of `os` stay replaced."""
    options = ["--python", "--every", "29", "--format", "raw", "--mode", "new"]
    assert found_by("disk_faults", *options)["faults by"] == "PythonFaults"


def test_two_processes_that_create_one_array():
    """In a process of its own, since variables of the environment lead to the object store."""
    for name in ("moto", "obstore", "zarr", "boto3"):
        pytest.importorskip(name)
    assert found_by("store_race", "--rounds", "4")["counts"]["rounds"] == 4


@pytest.mark.parametrize("form", ["npy", "hdf5", "zarr"])
def test_full_disks(capfd, form):
    if form in ("hdf5", "zarr"):
        pytest.importorskip("h5py" if form == "hdf5" else "zarr")
    assert full_disk.main(["--format", form]) == 0
    assert counts_of(capfd)["refused"] == 10


def test_hostile_files():
    """In a process of its own, since the campaign forks."""
    pytest.importorskip("h5py")
    pytest.importorskip("zarr")
    assert found_by("hostile_files", "--seeds", "2")["counts"]["checks"] == 12


def test_completions_beside_parts(capfd):
    pytest.importorskip("fastapi")
    from bench.campaigns import service_upload_race

    assert service_upload_race.main(["--rounds", "3", "--parts", "20", "--servers", "1"]) == 0
    assert counts_of(capfd)["deletion 204"] == 1


def test_hostile_bodies(capfd):
    pytest.importorskip("fastapi")
    from bench.campaigns import hostile_json

    assert hostile_json.main(["--sizes", "1000", "--limit", "200", "--together", "3"]) == 0
    assert counts_of(capfd)["422"] > 0


@pytest.mark.campaign  # tests/durable has shorter ones
def test_kills(capfd):
    assert run_kills.main(["--kills", "3"]) == 0
    assert counts_of(capfd)["kills"] >= 3


@pytest.mark.campaign  # tests/cluster has shorter ones
def test_workers_that_see_other_files(capfd):
    cluster_mounts = pytest.importorskip("bench.campaigns.cluster_mounts")
    cases = ["--case", "multiply-A", "--case", "multiply-draft", "--case", "cholesky-A-late"]
    if cluster_mounts.main(cases) == 2:
        pytest.skip("no mount namespaces here")
    assert counts_of(capfd)["refused"] == 3


@pytest.mark.campaign
def test_workers_that_are_stopped(capfd):
    cluster_frozen = pytest.importorskip("bench.campaigns.cluster_frozen")
    assert cluster_frozen.main(["--stops", "5"]) == 0
    assert counts_of(capfd)["stops"] >= 5


def test_what_is_wrong_sets_the_status(capfd):
    from argparse import Namespace

    tally = Tally()
    tally.check(True, "right")
    tally.check(False, "not right")
    assert tally.end("none", Namespace(save=False)) == 1
    assert json.loads(capfd.readouterr().out)["examples"] == ["not right"]


def test_slow_threads():
    """In a process of its own: the host multiplies otherwise, and threads are profiled."""
    assert found_by("slow_threads", "--cases", "28")["counts"]["checks"] == 28
