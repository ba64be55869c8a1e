"""The .npy format: read without trust, written whole, in a layout that NumPy reads."""

from __future__ import annotations

import errno
import io
import os
import pickle
import resource
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from hdgemm.errors import InputError, InputTypeError, MatrixIOError
from hdgemm.matrices.npy import create_npy, open_npy, read_header
from hdgemm.matrices.random import random_matrix
from tests.unnamed_files import without_unnamed_files


def file_with(path, header, version=(1, 0), data=b""):
    """A .npy file whose header is this text."""
    text = header.encode() if isinstance(header, str) else header
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    path.write_bytes(b"\x93NUMPY" + bytes(version) + size + text + data)
    return path


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", "CF")
def test_every_version_is_read(tmp_path, version, order):
    x = np.asarray(np.random.default_rng(0).standard_normal((13, 7)), order=order)
    with (tmp_path / "x.npy").open("wb") as stream:
        np.lib.format.write_array(stream, x, version=version)
    matrix, trans = open_npy(tmp_path / "x.npy")
    out = np.empty(matrix.shape)
    matrix.read(0, 0, out)
    matrix.close()
    assert trans is (order == "F")
    np.testing.assert_array_equal(out.T if trans else out, x)


def test_python_2_extents(tmp_path):
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2L, 3L), }\n"
    path = file_with(tmp_path / "x.npy", header, data=bytes(48))
    assert read_header(path).shape == (2, 3)


@pytest.mark.parametrize("cut", [0, 5, 8, 9, 40, 127, 128, 129, 128 + 13 * 7 * 8 - 1])
def test_a_truncated_file_is_said_with_its_bytes(tmp_path, cut):
    np.save(tmp_path / "x.npy", np.ones((13, 7)))
    os.truncate(tmp_path / "x.npy", cut)
    with pytest.raises(InputError) as caught:
        open_npy(tmp_path / "x.npy")
    if cut >= 10:
        assert "truncated" in str(caught.value)
        assert caught.value.found == cut
        assert caught.value.expected > cut


def test_bytes_after_the_data_do_no_harm(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 3)))
    with (tmp_path / "x.npy").open("ab") as stream:
        stream.write(b"more")
    open_npy(tmp_path / "x.npy")[0].close()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "__import__('os').system('false')",
        "{'descr': '<f8', 'fortran_order': False}",
        "{'descr': '<f8', 'fortran_order': 0, 'shape': (2, 2)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, -2)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2.0)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': [2, 2]}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), 'more': 1}",
        "[1, 2, 3]",
        "(" * 5000,
        "-" * 60_000 + "1",
        b"\xff\xfe\xfd",
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, header):
    for version in ((1, 0), (2, 0), (3, 0)):
        with pytest.raises(InputError):
            read_header(file_with(tmp_path / "x.npy", header, version, bytes(64)))


def test_an_endless_header_is_not_read(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100))
    with pytest.raises(InputError, match="header of 4294967295 bytes"):
        read_header(path)


def test_a_shape_beyond_64_bits_is_truncated_not_wrapped(tmp_path):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**40}, {2**40})}}"
    with pytest.raises(InputError, match="truncated") as caught:
        read_header(file_with(tmp_path / "x.npy", header))
    assert caught.value.expected > 2**83


def test_pickles_are_never_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[{}]], object), allow_pickle=True)
    with pytest.raises(InputTypeError, match="pickled"):
        read_header(tmp_path / "x.npy")
    (tmp_path / "y.npy").write_bytes(pickle.dumps(np.ones((2, 2))))
    with pytest.raises(InputError, match=r"not a \.npy file"):
        read_header(tmp_path / "y.npy")


def test_other_files_and_dtypes_are_refused(tmp_path):
    (tmp_path / "x.npy").write_text("1 2\n3 4\n")
    with pytest.raises(InputError, match=r"not a \.npy file"):
        read_header(tmp_path / "x.npy")
    for dtype in ("u8", "V2", "g", "f8,f8", "U2"):
        np.save(tmp_path / "x.npy", np.zeros((2, 2), dtype))
        with pytest.raises(InputTypeError):
            read_header(tmp_path / "x.npy")
    with pytest.raises(InputError, match="version 4"):
        read_header(file_with(tmp_path / "x.npy", "{}", (4, 0)))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "c8", ">c16"])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (300, 41)])
def test_what_is_created_numpy_reads(tmp_path, order, dtype, shape):
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    with create_npy(tmp_path / "x.npy", shape, dtype, order) as draft:
        assert draft.matrix.offset == 4096
        assert draft.operand.shape == shape
        tile = np.ascontiguousarray(x.T if draft.trans else x)
        draft.matrix.write(0, 0, tile)
        assert not (tmp_path / "x.npy").exists()
        draft.publish()
    for mode in (None, "r") if x.size else (None,):
        y = np.load(tmp_path / "x.npy", mmap_mode=mode)
        np.testing.assert_array_equal(y, x)
        assert y.dtype == x.dtype
        assert y.flags.f_contiguous or order == "C"
    assert (tmp_path / "x.npy").stat().st_size == 4096 + x.nbytes
    np.testing.assert_array_equal(np.load(io.BytesIO((tmp_path / "x.npy").read_bytes())), x)


def test_only_whole_files_get_their_name(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    with create_npy(tmp_path / "x.npy", (9, 9), "f8") as draft:
        draft.matrix.write(0, 0, np.zeros((9, 9)))
        assert np.load(tmp_path / "x.npy").shape == (2, 2)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), np.ones((2, 2)))
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
    draft = create_npy(tmp_path / "x.npy", (9, 9), "f8")
    draft.publish()
    draft.discard()
    assert np.load(tmp_path / "x.npy").shape == (9, 9)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_file_systems_without_unnamed_files(tmp_path, monkeypatch):
    without_unnamed_files(monkeypatch)
    with create_npy(tmp_path / "x.npy", (9, 9), "f8") as draft:
        assert [path.name for path in tmp_path.iterdir()] == [draft.part.name]
    assert not list(tmp_path.iterdir())
    with create_npy(tmp_path / "x.npy", (9, 9), "f8") as draft:
        draft.matrix.write(0, 0, np.ones((9, 9)))
        draft.publish()
    assert (np.load(tmp_path / "x.npy") == 1).all()


def test_a_new_file_has_the_usual_permissions(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    with create_npy(tmp_path / "y.npy", (9, 9), "f8") as draft:
        draft.publish()
    assert (tmp_path / "x.npy").stat().st_mode == (tmp_path / "y.npy").stat().st_mode


def test_a_name_that_cannot_be(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(InputError, match="not a file"):
        create_npy(tmp_path / "folder.npy", (2, 2), "f8")
    with pytest.raises(InputError, match=r"there is no folder .*mkdir -p"):
        create_npy(tmp_path / "nowhere" / "x.npy", (2, 2), "f8")
    with pytest.raises(InputTypeError):
        create_npy(tmp_path / "x.npy", (2, 2), "i4")


def test_a_link_keeps_pointing(tmp_path):
    np.save(tmp_path / "real.npy", np.ones((2, 2)))
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    with create_npy(tmp_path / "link.npy", (3, 3), "f8") as draft:
        draft.publish()
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "real.npy").shape == (3, 3)


def test_no_space_leaves_nothing_behind(tmp_path):
    with pytest.raises(MatrixIOError, match="cannot reserve") as caught:
        create_npy(tmp_path / "x.npy", (1 << 24, 1 << 24), "f8")
    assert caught.value.requested == 4096 + (8 << 48)
    assert 0 < caught.value.available < caught.value.requested
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_reserve(tmp_path, monkeypatch):
    def refuse(fd, offset, length):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    x = np.ones((30, 30))
    with create_npy(tmp_path / "x.npy", x.shape, "f8") as draft:
        draft.matrix.write(0, 0, x)
        draft.publish()
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)
    with pytest.raises(MatrixIOError, match="No space left"):
        create_npy(tmp_path / "y.npy", (1 << 24, 1 << 24), "f8")


def test_a_file_size_limit_is_an_error_not_a_signal(tmp_path):
    script = f"""
        import resource
        from pathlib import Path
        from hdgemm.errors import MatrixIOError
        from hdgemm.matrices.npy import create_npy
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, {resource.RLIM_INFINITY}))
        try:
            create_npy(Path({str(tmp_path)!r}) / "x.npy", (1000, 1000), "f8")
        except MatrixIOError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert "8004096 bytes" in done.stdout
    assert "file size limit" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_random_matrices_depend_on_seed_and_shape_alone(tmp_path, monkeypatch):
    random_matrix(tmp_path / "x.npy", 700, 1001, seed=3)
    monkeypatch.setattr("hdgemm.matrices.random._PIECE_BYTES", 1 << 21)
    random_matrix(tmp_path / "y.npy", 700, 1001, seed=3)
    random_matrix(tmp_path / "z.npy", 700, 1001, seed=4)
    x, y, z = (np.load(tmp_path / f"{name}.npy") for name in "xyz")
    np.testing.assert_array_equal(x, y)
    assert not (x == z).any()
    # Pinned: the same seed must give the same matrix in every version.
    expected = np.random.Generator(np.random.SFC64((3, 1))).standard_normal(4)
    np.testing.assert_array_equal(x.reshape(-1)[1 << 18 :][:4], expected)
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", ">f8"])
def test_random_matrices_of_every_dtype(tmp_path, dtype):
    random_matrix(tmp_path / "x.npy", 600, 700, 1, dtype)
    x = np.load(tmp_path / "x.npy")
    assert x.dtype == np.dtype(dtype).newbyteorder("=")
    for part in (x.real, x.imag) if x.dtype.kind == "c" else (x,):
        assert abs(part.std() - 1) < 0.01
        assert abs(np.corrcoef(part[:300].ravel(), part[300:].ravel())[0, 1]) < 0.02


def test_random_matrices_of_odd_sizes(tmp_path):
    random_matrix(tmp_path / "x.npy", 0, 5, 1)
    assert np.load(tmp_path / "x.npy").shape == (0, 5)
    random_matrix(tmp_path / "x.npy", 1, 1, 1)
    assert np.isfinite(np.load(tmp_path / "x.npy")).all()
    with pytest.raises(InputError, match="negative"):
        random_matrix(tmp_path / "x.npy", 2, 2, -1)
