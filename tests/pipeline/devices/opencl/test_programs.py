"""Built programs: kept as binaries, rebuilt when a file is damaged, independent of PyOpenCL's."""

import numpy as np
import pyopencl as cl
import pytest

from hdgemm.errors import DeviceError, DeviceUnavailableError
from hdgemm.pipeline.devices.opencl import _programs as programs
from hdgemm.pipeline.devices.opencl._driver import OwnerProcess
from hdgemm.pipeline.devices.opencl.kernel_shapes import KernelShape
from hdgemm.pipeline.devices.opencl.names import locate

pytest.importorskip("pyopencl")
SOURCE = "__kernel void twice(__global float *x) { x[get_global_id(0)] *= 2; }"


@pytest.fixture
def context():
    return cl.Context([locate("opencl:0").handle])


def doubled(context, program):
    queue = cl.CommandQueue(context)
    x = np.arange(4, dtype=np.float32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    memory = cl.Buffer(context, flags, hostbuf=x)
    cl.Kernel(program, "twice")(queue, (4,), None, memory)
    cl.enqueue_copy(queue, x, memory)
    return x.tolist()


@pytest.mark.parametrize("damage", [None, b"", b"x" * 100, "cut", "digest"])
def test_a_binary_is_loaded_unless_it_is_damaged(context, tmp_path, monkeypatch, damage):
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path))
    monkeypatch.setattr(programs, "has_src_build_cache", lambda _: False)
    programs.build_cached(context, SOURCE)
    (file,) = (tmp_path / "opencl" / "programs").iterdir()
    whole = file.read_bytes()
    damaged = {"cut": whole[:-1], "digest": whole[:32] + b"?" + whole[33:], None: whole}
    file.write_bytes(damaged.get(damage, damage))
    compiled = []
    monkeypatch.setattr(programs, "build", lambda *a: compiled.append(1) or BUILD(*a))
    assert doubled(context, programs.build_cached(context, SOURCE)) == [0, 2, 4, 6]
    assert bool(compiled) == (damage is not None)
    assert file.read_bytes() == whole or damage is not None


BUILD = programs.build


def test_a_folder_that_cannot_be_written_is_no_error(context, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(programs, "has_src_build_cache", lambda _: False)
    assert doubled(context, programs.build_cached(context, SOURCE)) == [0, 2, 4, 6]


def test_a_stale_lock_of_pyopencls_cache_blocks_nothing(context, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "has_src_build_cache", lambda _: False)
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path / "ours"))
    monkeypatch.setattr("pyopencl.cache.CacheLockManager", lambda *_: pytest.fail("waits"))
    monkeypatch.setattr("pyopencl.characterize.has_src_build_cache", lambda _: False)
    assert doubled(context, programs.build_cached(context, SOURCE)) == [0, 2, 4, 6]


def test_a_source_that_does_not_compile_shows_the_compilers_log(context):
    with pytest.raises(DeviceError, match="building an OpenCL kernel"):
        programs.build_cached(context, "__kernel void broken( {")


def test_a_driver_that_refuses_a_kernel_names_the_list_of_devices(context, monkeypatch):
    monkeypatch.setattr(programs, "gemm_source", lambda *_: "__kernel void broken( {")
    kept = programs.Programs(context, OwnerProcess("a device"), lockstep=False)
    with pytest.raises(DeviceUnavailableError, match=r"`hdgemm devices` .* building an OpenCL"):
        kept.gemm(np.dtype("float64"), KernelShape(lanes=4))


def test_both_packing_kernels_of_a_width_are_built_once(context, monkeypatch):
    built = []
    monkeypatch.setattr(programs, "build_cached", lambda *a: built.append(a) or BUILD(*a))
    kept = programs.Programs(context, OwnerProcess("a device"), lockstep=False)
    dtype = np.dtype("float64")
    kernels = [kept.pack(dtype, 8, rows_are_steps=rows) for rows in (False, True, False, True)]
    assert len(built) == 1
    assert kernels[0] is kernels[2] is not kernels[1]
