"""The service's own files: for its user alone, and outside the folders of jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hdgemm.errors import InputError
from hdgemm.server.database import open_database
from tests.server.harness import finished, live, make_settings, submit, upload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def modes(folder: Path) -> dict[str, int]:
    """Return the permissions of a folder and all in it but links, which have none of their own."""
    return {
        str(path.relative_to(folder.parent)): path.stat().st_mode & 0o777
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink()
    }


@pytest.fixture
def umask() -> Iterator[None]:
    """Let new files be read by all, as most systems do."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_the_files_of_the_service_are_for_its_user_alone(tmp_path: Path) -> None:
    above = tmp_path / "above"
    settings = make_settings(
        tmp_path, data_dir=above / "more/data",
        library="hdgemm.server.hdgemm_backend:HdgemmLibrary", database_url="",
    )  # fmt: skip
    root = settings.roots[0]
    np.save(root / "a.npy", np.eye(30))
    a = {"path": "a.npy"}
    open_database(settings).close()  # as `hdgemm token create` before the first start
    assert not {name: mode for name, mode in modes(above).items() if mode & 0o077}
    with live(settings) as server:
        upload(server.http, np.eye(3))
        for process, inputs in (
            ("gemm", {"a": a, "b": a}),
            ("gemm", {"a": a, "b": a, "output": {"path": "c.npy"}}),
            ("lu", {"a": a, "output": {"path": "f.npy"}}),
            ("lu", {"a": a}),
        ):
            job = finished(server.http, submit(server.http, process, **inputs))
            assert job["status"] == "successful", job["error"]
        found = modes(above)
        del found["above/more/data/serve.log"]  # the test's own
        assert not {name: oct(mode) for name, mode in found.items() if mode & 0o077}
    assert len(found) > 20
    # Results among the files of jobs have the permissions that the server's user gives new files.
    assert modes(root)["root/c.npy"] == 0o644
    assert modes(root)["root/f.npy"] == modes(root)["root/f.piv.npy"] == 0o644


@pytest.mark.usefixtures("umask")
def test_an_older_data_folder_is_closed_to_others(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    settings.data_dir.mkdir(mode=0o755)
    open_database(settings).close()
    assert settings.data_dir.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("data", "root"),
    [("root", "root"), ("root/data", "root"), ("data", "data/root"), ("link/data", "root"),
     ("data", "data/matrices/root")],
)  # fmt: skip
def test_a_data_folder_in_a_root_is_refused(tmp_path: Path, data: str, root: str) -> None:
    (tmp_path / root).mkdir(parents=True)
    if data.startswith("link"):
        (tmp_path / "link").symlink_to(tmp_path / root)
    settings = make_settings(tmp_path, data_dir=tmp_path / data, roots=(tmp_path / root,))
    with pytest.raises(InputError, match="--data-dir"):
        open_database(settings)
    assert not (tmp_path / data / "jobs").exists()


def test_matrices_of_the_service_linked_into_a_root_are_refused(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    (settings.roots[0] / "uploads").mkdir()
    settings.data_dir.mkdir()
    settings.matrices_dir.symlink_to(settings.roots[0] / "uploads")
    with pytest.raises(InputError, match=r"data/matrices"):
        open_database(settings)


def test_a_database_in_a_root_is_refused(tmp_path: Path) -> None:
    at = tmp_path / "root/service.db"
    settings = make_settings(tmp_path, database_url=f"sqlite:///{at}")
    with pytest.raises(InputError, match=r"service\.db"):
        open_database(settings)
    assert not at.exists()
