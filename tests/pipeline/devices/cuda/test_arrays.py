"""Arrays in a GPU's memory: which are recognised, how they are described, products on them."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from hdgemm.blas.products import matmul
from hdgemm.errors import DeviceError, DeviceUnavailableError, InputError, InputTypeError
from hdgemm.matrices import device_arrays
from hdgemm.matrices.device_arrays import from_device_array, is_device_array
from hdgemm.pipeline.devices.protocol import Block, Tile
from tests.pipeline.devices.cuda.cuda_bench import Bench, random, whole
from tests.pipeline.devices.cuda.standin.streams import CUDARuntimeError
from tests.reference import DTYPES, assert_close_in_eps


class Interface:
    """An array with ``__cuda_array_interface__`` over given memory; version 2 has no stream."""

    def __init__(self, array, *, stream=None, read_only=False, strides=True, mask=None, version=3):
        self.array = array
        self.description = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, read_only),
            "strides": array.strides if strides else None,
            "version": version,
            "mask": mask,
        }
        if version > 2:
            self.description["stream"] = stream

    @property
    def __cuda_array_interface__(self):
        return self.description


class Exporter:
    """An array with DLPack only, on a GPU."""

    def __init__(self, array, device=(2, 0)):
        self.array = array
        self.device = device
        self.streams = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self.array.__dlpack__()


class Torch(Interface):
    """As PyTorch's tensors: version 2 of the interface, and DLPack on the current GPU only."""

    def __init__(self, array, enqueue, *, current=True):
        super().__init__(array, version=2)
        self.enqueue, self.current = enqueue, current

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=-1):
        if not self.current:
            raise BufferError("Can't export tensors on a different CUDA device index")
        self.enqueue(stream)
        return object()


class CpuTensor:
    """As PyTorch's: the attribute exists, and reading it raises AttributeError."""

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("can't get __cuda_array_interface__ on non-CUDA tensor")

    def __dlpack_device__(self):
        return (1, 0)


def test_arrays_on_a_gpu_are_recognised():
    x = np.zeros((2, 2))
    assert is_device_array(Interface(x))
    assert is_device_array(Exporter(x))
    assert not is_device_array(Exporter(x, (1, 0)))
    assert not is_device_array(CpuTensor())
    assert not any(map(is_device_array, (x, "A.npy", None, 3.0)))


@pytest.mark.parametrize("make", [Interface, Exporter])
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_become_ld_and_trans(make, dtype):
    big = np.zeros((6, 10), dtype)
    for array, trans in ((big, False), (big[:3, 2:7], False), (big.T, True), (big[1:, 3:].T, True)):
        operand = from_device_array(make(array), "A")
        stored = array.T if trans else array
        found = operand.matrix.device_array
        assert operand.trans is trans
        assert operand.shape == array.shape
        assert (found.pointer, found.shape, found.dtype) == (
            array.ctypes.data, stored.shape, array.dtype,
        )  # fmt: skip
        assert found.strides[0] == 10 * found.itemsize
        assert operand.matrix.array is None


def test_absent_strides_mean_rows_in_order():
    operand = from_device_array(Interface(np.zeros((4, 3)), strides=False), "A")
    assert (operand.matrix.device_array.strides, operand.trans) == ((24, 8), False)


def test_a_single_row_or_column_takes_any_stride():
    x = np.zeros((5, 6))
    assert from_device_array(Interface(x[::2, 1:2].T), "A").matrix.shape == (1, 3)[::-1]
    assert from_device_array(Interface(x[1:2, ::1]), "A").matrix.device_array.strides == (48, 8)


def test_dlpack_is_asked_for_data_that_is_ready():
    exporter = Exporter(np.zeros((2, 2)))
    found = from_device_array(exporter, "A").matrix.device_array
    assert exporter.streams == [1]
    assert (found.device, found.stream) == (0, 1)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (Interface(np.zeros(3)), InputError, "2-D"),
        (Interface(np.zeros((2, 2), "int64")), InputTypeError, "astype"),
        (Interface(np.zeros((2, 2), ">f8")), InputError, "byte order"),
        (Interface(np.zeros((4, 4))[::2, ::2]), InputError, "contiguous copy"),
        (Interface(np.zeros((4, 4))[::-1]), InputError, "contiguous copy"),
        (Interface(np.zeros((2, 2)), mask=object()), InputError, "mask"),
        (Exporter(np.zeros((2, 2), "float16")), InputTypeError, "float16"),
    ],
)
def test_what_cannot_be_used_says_why(x, error, words):
    with pytest.raises(error, match=words):
        from_device_array(x, "A")


def test_a_read_only_array_is_no_out():
    x = Interface(np.zeros((2, 2)), read_only=True)
    from_device_array(x, "A")
    with pytest.raises(InputError, match="read-only"):
        from_device_array(x, "out", writable=True)


def on_gpu(bench, array):
    """Put values into device memory of the stand-in, as another library's array."""
    tile = bench.tile("A", *array.shape, array.dtype)
    bench.device.upload(bench.staged(array), whole(tile), []).wait()
    raw = (np.ctypeslib.ctypes.c_uint8 * array.nbytes).from_address(tile.buffer.pointer)
    return np.ndarray(array.shape, array.dtype, np.ctypeslib.as_array(raw)), tile


def resident(operand, name):
    found = operand.matrix.device_array
    return Tile(
        name, found, *found.shape, found.strides[0] // found.itemsize, found.dtype, operand.trans
    )


def test_a_product_of_arrays_that_stay_where_they_are():
    bench = Bench(order="lazy")
    a, b = random((4, 6), "float64", 1), random((5, 6), "float64", 2)
    c = random((4, 5), "float64", 3)
    (a_gpu, _), (b_gpu, _), (c_gpu, _) = (on_gpu(bench, x) for x in (a, b, c))
    bench.standin.calls.clear()
    operands = [
        from_device_array(Interface(x), name, writable=name == "C")
        for name, x in (("A", a_gpu), ("B", b_gpu.T), ("C", c_gpu))
    ]
    for operand in operands:
        bench.device.accept(operand.matrix.device_array)
    tiles = [resident(x, name) for x, name in zip(operands, "ABC", strict=True)]
    blocks = [Block(tiles[0], 1, 0, 3, 6), whole(tiles[1]), Block(tiles[2], 1, 0, 3, 5)]
    bench.device.gemm(2.0, blocks[0], blocks[1], 0.5, blocks[2], []).wait()
    assert_close_in_eps(c_gpu[1:].copy(), a[1:], b.T, alpha=2.0, beta=0.5, c=c[1:])
    np.testing.assert_array_equal(c_gpu[0], c[0])
    assert not any("memcpy" in name for name in bench.names())


def test_the_producers_stream_is_waited_for():
    bench = Bench()
    x, _ = on_gpu(bench, np.eye(2))
    for stream, waited in ((1, [(1,)]), (None, [])):
        bench.standin.calls.clear()
        array = from_device_array(Interface(x, stream=stream), "A").matrix.device_array
        bench.device.accept(array)
        assert bench.args("streamSynchronize") == waited
        assert bench.args("deviceSynchronize") == []


class Producer:
    """A library that fills an array on a stream of its own, which is still running."""

    def __init__(self, bench, values):
        self.bench = bench
        self.array, self.tile = on_gpu(bench, np.full(values.shape, np.nan))
        driver = bench.device.driver
        self.event = driver.event(blocking=False)
        with driver.current():
            self.stream = driver.api.stream()
            bench.standin.enqueue(self.stream.ptr, lambda: np.copyto(self.array, values))

    def order(self, stream):
        """Let a stream wait for what fills the array, as ``__dlpack__`` does."""
        driver = self.bench.device.driver
        with driver.current():
            driver.record(self.event, self.stream)
            driver.api.runtime.streamWaitEvent(stream, self.event)

    def interface(self):
        return Interface(self.array, version=2)

    def torch(self):
        return Torch(self.array, self.order)

    def torch_elsewhere(self):
        return Torch(self.array, self.order, current=False)


@pytest.mark.parametrize("export", [Producer.interface, Producer.torch, Producer.torch_elsewhere])
def test_an_array_without_a_stream_is_ready_when_it_is_read(export):
    """Version 2 of the interface: DLPack orders the producer's work, else the GPU is waited for."""
    bench = Bench(order="lazy")
    producer = Producer(bench, np.eye(3))
    operand = from_device_array(export(producer), "A")
    bench.standin.calls.clear()
    bench.device.accept(operand.matrix.device_array)
    waited = [name for name in bench.names() if name.endswith("Synchronize")]
    assert waited == ["streamSynchronize" if export is Producer.torch else "deviceSynchronize"]
    np.testing.assert_array_equal(producer.array, np.eye(3))


def test_arrays_elsewhere_are_refused():
    bench = Bench(devices=2)
    with pytest.raises(InputError, match="pageable memory"):
        bench.device.accept(from_device_array(Interface(np.eye(2)), "A").matrix.device_array)
    bench.standin.current.device = 1
    pointer = bench.standin.api().runtime.malloc(32)
    bench.standin.current.device = 0
    raw = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_double * 4).from_address(pointer))
    x = Interface(raw.reshape(2, 2))
    with pytest.raises(InputError, match="cuda:1"):
        bench.device.accept(from_device_array(x, "A").matrix.device_array)


class NeedsGradient:
    """As PyTorch's tensors of a GPU that require a gradient."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("Can't get it on Variable that requires grad: use var.detach()")


class NoExport(Exporter):
    def __dlpack__(self, stream=None):
        raise BufferError("Can't export tensors that require gradient")


@pytest.mark.parametrize("x", [NeedsGradient(), NoExport(np.eye(2))])
def test_arrays_that_give_no_access_are_refused_by_name(x):
    with pytest.raises(InputError, match="b does not give access to its memory: Can't"):
        matmul(np.eye(2), x)


class FakeCupy(SimpleNamespace):
    """The functions of CuPy that copying in and out needs, on host memory.

    `drain` runs all work of a GPU.
    """

    def __init__(self, drain=lambda _index: None):
        self.waited, self.current, self.drain = [], [], drain
        stream = SimpleNamespace(synchronize=lambda: self.waited.append("copied"))
        cuda = SimpleNamespace(
            UnownedMemory=lambda pointer, nbytes, _owner, _device: (pointer, nbytes),
            MemoryPointer=lambda memory, _offset: memory,
            get_current_stream=lambda: stream,
            runtime=SimpleNamespace(
                streamSynchronize=lambda stream: self.waited.append((self.current[-1], stream)),
                deviceSynchronize=lambda: self._all(self.current[-1]),
            ),
        )
        super().__init__(
            cuda=cuda, asarray=np.asarray, ndarray=self._ndarray, waited=self.waited,
            current=self.current, drain=drain,
        )  # fmt: skip

    def install(self, monkeypatch):
        """Let the library use this CuPy, and a driver whose pointers belong to GPU 3."""
        driver = SimpleNamespace(
            push=self.current.append, pop=self.current.pop, device_of=lambda _pointer: 3
        )
        monkeypatch.setitem(sys.modules, "cupy", self)
        monkeypatch.setattr(device_arrays.DriverLibrary, "loaded", lambda: driver)

    def _all(self, index):
        self.waited.append((index, "all"))
        self.drain(index)

    def _ndarray(self, shape, dtype, memory, strides):
        pointer, nbytes = memory
        raw = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * nbytes).from_address(pointer))

        class View(np.ndarray):
            def get(self):
                return np.array(self)

        return np.ndarray(shape, dtype, raw, 0, strides).view(View)


@pytest.mark.parametrize(
    ("given", "waited"),
    [({"stream": 1}, [(3, 1)]), ({"stream": None}, []), ({"version": 2}, [(3, "all")])],
)
def test_rectangles_are_read_and_written_on_the_arrays_gpu(monkeypatch, given, waited):
    cupy = FakeCupy()
    cupy.install(monkeypatch)
    x = random((5, 7), "float32")
    expected = x.copy()
    matrix = from_device_array(Interface(x[:, 1:], **given), "A").matrix
    out = np.zeros((2, 3))
    matrix.read(1, 2, out)
    np.testing.assert_array_equal(out, expected[1:3, 3:6])
    matrix.write(3, 0, np.ones((2, 2)))
    expected[3:5, 1:3] = 1
    np.testing.assert_array_equal(x, expected)
    assert cupy.waited == [*waited, *waited, "copied"]
    assert cupy.current == []
    assert matrix.phase(1, 1) == 0
    matrix.flush()
    matrix.close()


def test_a_copy_that_the_driver_refuses_is_an_error_of_the_library(monkeypatch):
    cupy = FakeCupy()
    cupy.install(monkeypatch)

    def refuse(_stream):
        raise CUDARuntimeError(719, "unspecified launch failure")

    cupy.cuda.runtime.streamSynchronize = refuse
    matrix = from_device_array(Interface(np.eye(2), stream=1), "A").matrix
    with pytest.raises(DeviceError, match="unspecified launch failure"):
        matrix.read(0, 0, np.zeros((2, 2)))
    assert cupy.current == []
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceUnavailableError, match="cupy"):
        matrix.write(0, 0, np.zeros((2, 2)))
