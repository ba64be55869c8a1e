"""Where CuPy is installed: the stand-in has its signatures. Where a GPU is: the true device."""

import inspect
import re

import pytest

from hdgemm.device_check import check_device
from hdgemm.matrices._dlpack import LEGACY_STREAM
from hdgemm.pipeline.devices.cuda import list_devices, open_device
from hdgemm.pipeline.devices.cuda._calls import GemmCall, TrsmCall
from hdgemm.pipeline.devices.cuda._kernels import NAMES, SOURCE
from tests.pipeline.devices.cuda.standin import StandIn
from tests.pipeline.devices.cuda.standin.blas import ROUTINES, SOLVES
from tests.pipeline.devices.cuda.standin.memory import PointerAttributes
from tests.pipeline.devices.device_contract import DeviceContract

#: CuPy's bindings say their own signatures only in the first line of their docstrings.
NO_DOCSTRING = {"driverGetVersion", "runtimeGetVersion"}


def parameters(function):
    """Names of the parameters of a Cython function, in lower case, without those with defaults."""
    inside = re.match(r"\w+\((.*?)\)", function.__doc__)[1]
    names = [part.split()[-1] for part in inside.split(",") if part.strip() and "=" not in part]
    return [name.lower() for name in names]


def standin_parameters(function):
    found = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in found if parameter.default is parameter.empty]


def test_the_stand_in_has_cupys_signatures():
    runtime = pytest.importorskip("cupy.cuda.runtime", reason="CuPy is not installed")
    mine = StandIn().api().runtime
    for name, function in vars(mine).items():
        theirs = getattr(runtime, name)
        if name not in NO_DOCSTRING:
            assert parameters(theirs) == standin_parameters(function), name


def test_gemm_has_cupys_arguments():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        blas = cupy.cuda.cublas
    except ImportError as error:
        pytest.skip(f"cuBLAS is not installed: {error}")
    expected = ["handle", *GemmCall._fields[1:]]
    for routine in ROUTINES:
        assert parameters(getattr(blas, routine)) == expected
    names = ["aarray" if name == "a" else "barray" if name == "b" else name
             for name in ["handle", *TrsmCall._fields[1:]]]  # fmt: skip
    for solve in SOLVES:
        assert parameters(getattr(blas, solve)) == names
    assert (blas.CUBLAS_SIDE_RIGHT, blas.CUBLAS_FILL_MODE_UPPER, blas.CUBLAS_DIAG_UNIT) == (1, 1, 1)
    assert parameters(blas.create) == []
    assert parameters(blas.destroy) == ["handle"]
    assert parameters(blas.setPointerMode) == ["handle", "mode"]
    assert blas.CUBLAS_POINTER_MODE_HOST == 0
    assert (blas.CUBLAS_OP_N, blas.CUBLAS_OP_T) == (0, 1)


def test_cusolver_has_the_arguments_that_are_passed():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        blas, solver = cupy.cuda.cublas, cupy.cuda.cusolver
    except ImportError as error:
        pytest.skip(f"a library is not installed: {error}")
    expected = {
        "getrf": "m n a lda work devipiv devinfo", "getrf_bufferSize": "m n a lda",
        "geqrf": "m n a lda tau work lwork devinfo", "geqrf_bufferSize": "m n a lda",
        "potrf": "uplo n a lda work lwork devinfo", "potrf_bufferSize": "uplo n a lda",
    }  # fmt: skip
    for letter in "sdcz":
        for name, arguments in expected.items():
            assert parameters(getattr(solver, letter + name)) == ["handle", *arguments.split()]
        assert parameters(getattr(blas, letter + "geam")) == (
            [
                "handle",
                "transa",
                "transb",
                "m",
                "n",
                "alpha",
                "a",
                "lda",
                "beta",
                "b",
                "ldb",
                "c",
                "ldc",
            ]
        )
    for letter in "sd":
        assert parameters(getattr(blas, letter + "scal")) == ["handle", "n", "alpha", "x", "incx"]


def test_nvrtc_compiles_the_kernels():
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed")
    try:
        program = nvrtc.createProgram(SOURCE, "kernels.cu", (), ())
    except RuntimeError as error:
        pytest.skip(f"NVRTC is not installed: {error}")
    nvrtc.compileProgram(program, ("-arch=compute_75", "--std=c++17"))
    compiled = nvrtc.getPTX(program)
    assert all(name.encode() in compiled for name in NAMES.values())
    nvrtc.destroyProgram(program)


def test_cupys_constants_are_the_ones_used():
    runtime = pytest.importorskip("cupy.cuda.runtime", reason="CuPy is not installed")
    assert (runtime.memcpyHostToDevice, runtime.memcpyDeviceToHost) == (1, 2)
    assert runtime.memcpyDeviceToDevice == 3
    assert runtime.eventBlockingSync == 1
    assert runtime.cudaDevAttrSingleToDoublePrecisionPerfRatio == 87
    assert runtime.streamLegacy == LEGACY_STREAM
    kinds = (
        runtime.memoryTypeUnregistered,
        runtime.memoryTypeHost,
        runtime.memoryTypeDevice,
        runtime.memoryTypeManaged,
    )
    assert kinds == (0, 1, 2, 3)
    assert set(PointerAttributes._fields) <= set(dir(runtime.PointerAttributes))
    assert runtime.CUDARuntimeError.__name__ == "CUDARuntimeError"


def test_arguments_convert(recwarn):
    """Without a GPU every call fails in the driver, after CuPy has taken its arguments."""
    runtime = pytest.importorskip("cupy.cuda.runtime", reason="CuPy is not installed")
    if list_devices()[0].usable:
        pytest.skip("a GPU is here; the contract below runs on it")
    calls = (
        (runtime.memcpy2DAsync, (0, 8, 0, 8, 8, 1, 1, 0)),
        (runtime.memcpyAsync, (0, 0, 8, 2, 0)),
        (runtime.hostRegister, (4096, 4096, 3)),
        (runtime.eventCreateWithFlags, (1,)),
        (runtime.streamWaitEvent, (0, 0)),
        (runtime.eventElapsedTime, (0, 0)),
        (runtime.malloc, (1 << 40,)),
    )
    for function, arguments in calls:
        with pytest.raises(runtime.CUDARuntimeError):
            function(*arguments)


class TestTrueDevice(DeviceContract):
    """The contract on a real GPU."""

    @pytest.fixture
    def device(self):
        info = list_devices()[0]
        if not info.usable:
            pytest.skip(f"no GPU: {info.note}")
        device = open_device(info.name)
        yield device
        device.close()


def test_a_true_gpu_multiplies_correctly():
    info = list_devices()[0]
    if not info.usable:
        pytest.skip(f"no GPU: {info.note}")
    result = check_device(info.name)
    assert result.passed, [group for group in result.groups if not group.passed]
