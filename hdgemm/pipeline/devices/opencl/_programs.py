"""OpenCL C sources of the kernels, built programs, and kernel calls."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyopencl as cl
from pyopencl.characterize import has_src_build_cache

from hdgemm.dtypes import ELEMENT_TYPES
from hdgemm.errors import DeviceError, DeviceUnavailableError
from hdgemm.machine.cache import cache_folder, replace_file
from hdgemm.pipeline.devices.opencl._driver import driver_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.pipeline.devices.opencl._driver import OwnerProcess
    from hdgemm.pipeline.devices.opencl.kernel_shapes import Extents, KernelShape

#: k steps that one work-group packs: long enough to stream memory, short enough to balance cores.
PACK_CHUNK: Final = 256
#: Rows of the diagonal blocks that a triangular solve inverts.
ORDER: Final = 64
#: Work-items of a work-group of the kernels of factorisations. PoCL builds a kernel anew for each
#: size of work-groups, and chooses another size for each grid where none is given.
GROUP: Final = 64
#: Work-items that pack one panel on a device whose work-items execute in lockstep.
_GPU_PACK_ITEMS: Final = 128
_BUILD_OPTIONS: Final = ["-cl-std=CL1.2"]
_DIGEST_BYTES: Final = 32
_BUILDING: Final = threading.Lock()


def gemm_source(shape: KernelShape, dtype: np.dtype[Any]) -> str:
    """Return the source of the kernel ``gemm`` for one shape and dtype."""
    values = {name.upper(): int(value) for name, value in shape.to_json().items()}
    return _source("gemm.cl", values, dtype)


def pack_source(width: int, items: int, dtype: np.dtype[Any]) -> str:
    """Return the source of ``pack_rows`` and ``pack_columns`` into panels of `width` elements.

    `items` work-items pack one panel: 1 on a CPU, many on a GPU.
    """
    return _source("pack.cl", {"WIDTH": width, "LANES": items, "CHUNK": PACK_CHUNK}, dtype)


def factor_source(items: int, dtype: np.dtype[Any]) -> str:
    """Return the source of the kernels of factorisations; `items` work-items factor a column."""
    return _source("factor.cl", {"ORDER": ORDER, "LANES": items, "GROUP": GROUP}, dtype)


def _source(name: str, parameters: dict[str, int], dtype: np.dtype[Any]) -> str:
    real, pair = ELEMENT_TYPES[dtype.name].real, dtype.kind == "c"
    double = real == "double"
    extension = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" if double else ""
    element = real + "2" * pair
    values = {"REAL": real, "ELEMENT": element, "CPLX": int(pair), **parameters}
    definitions = "".join(f"#define {key} {value}\n" for key, value in values.items())
    return extension + definitions + _kernel_text(name)


@cache
def _kernel_text(name: str) -> str:
    return files(__package__).joinpath("kernels", name).read_text(encoding="utf-8")


def build(context: cl.Context, source: str) -> cl.Program:
    """Compile a source; the compiler's warnings are dropped.

    PyOpenCL's own cache of programs is not used: a process that was killed while it held the
    cache's lock file would block every later build for a minute. Raises `DeviceError` with the
    first lines of the compiler's log.
    """
    return _built(lambda: cl.Program(context, source))


def build_cached(context: cl.Context, source: str) -> cl.Program:
    """Compile a source, or load its binary from the cache folder where the driver keeps none."""
    device = context.devices[0]
    if has_src_build_cache(device):
        return build(context, source)
    identity = f"{device.platform.name}\n{device.name}\n{device.driver_version}\n{source}"
    name = hashlib.sha256(identity.encode()).hexdigest()
    path = cache_folder() / "opencl" / "programs" / f"{name}.bin"
    with contextlib.suppress(OSError, DeviceError):
        data = path.read_bytes()
        digest, binary = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        # A driver may crash on a damaged binary.
        if hashlib.sha256(binary).digest() == digest:
            return _built(lambda: cl.Program(context, [device], [binary]))
    program = build(context, source)
    with contextlib.suppress(OSError, cl.Error):
        binaries: Any = program.get_info(cl.program_info.BINARIES)
        binary = binaries[0]
        replace_file(path, hashlib.sha256(binary).digest() + binary)
    return program


def _built(make: Callable[[], cl.Program]) -> cl.Program:
    # Warning filters belong to the process, and queues build in several threads.
    with _BUILDING, warnings.catch_warnings(), driver_errors("building an OpenCL kernel"):
        warnings.simplefilter("ignore", cl.CompilerWarning)
        uncached: Any = False
        program: cl.Program = make().build(options=_BUILD_OPTIONS, cache_dir=uncached)
        return program


class Programs:
    """The kernels of one device, each built at its first use and kept as long as the device."""

    def __init__(self, context: cl.Context, owner: OwnerProcess, *, lockstep: bool) -> None:
        self._context, self._owner = context, owner
        self._lock = threading.Lock()
        self._programs: dict[str, cl.Program] = {}
        self._kernels: dict[tuple[object, ...], cl.Kernel] = {}
        #: Work-items of the work-groups of kernels that pack, and of those that factor a column.
        self.pack_items = _GPU_PACK_ITEMS if lockstep else 1

    def gemm(self, dtype: np.dtype[Any], shape: KernelShape) -> cl.Kernel:
        """Return the multiply kernel of a dtype and shape."""
        key = ("gemm", dtype, shape)
        return self._kernels.get(key) or self._build(
            key, gemm_source(shape, dtype), gemm_arguments(dtype, shape)
        )

    def pack(
        self, dtype: np.dtype[Any], width: int, *, rows_are_steps: bool, user: str = "upload"
    ) -> cl.Kernel:
        """Return the packing kernel of a dtype into panels of `width`, for one queue."""
        key = ("pack_rows" if rows_are_steps else "pack_columns", dtype, width, user)
        return self._kernels.get(key) or self._build(
            key, pack_source(width, self.pack_items, dtype), _PACK_ARGUMENTS
        )

    def factor(self, dtype: np.dtype[Any], name: str) -> cl.Kernel:
        """Return a kernel of `kernels/factor.cl`."""
        key = (name, dtype)
        return self._kernels.get(key) or self._build(
            key, factor_source(self.pack_items, dtype), _FACTOR_ARGUMENTS[name]
        )

    def _build(self, key: tuple[Any, ...], source: str, arguments: Sequence[Any]) -> cl.Kernel:
        self._owner.check()
        with self._lock:
            if source not in self._programs:
                self._programs[source] = self._program(source)
            # A kernel object holds its arguments: only one queue may use it.
            kernel = cl.Kernel(self._programs[source], key[0])
            # With declared types PyOpenCL sets all arguments in one call, 100 times faster.
            kernel.set_scalar_arg_dtypes(arguments)
            return self._kernels.setdefault(key, kernel)

    def _program(self, source: str) -> cl.Program:
        try:
            return build_cached(self._context, source)
        except DeviceError as error:
            raise DeviceUnavailableError(
                f"the driver of {self._context.devices[0].name} refused a kernel: take another "
                f"device (`hdgemm devices` says which can be used), or mend the driver; {error}"
            ) from error


#: Arguments of the kernels in `kernels/factor.cl`.
_FACTOR_ARGUMENTS: Final[dict[str, list[Any]]] = {
    "move": [
        *(np.int64,) * 2,
        np.int32,
        None,
        np.int32,
        *(None, np.int64, np.int64, np.int64) * 2,
    ],
    "conjugate": [np.int64, None, np.int64, np.int64],
    "invert": [*(np.int32,) * 3, None, np.int64, np.int64, None],
    "pivot": [np.int64, np.int32, np.int32, None, None],
    "eliminate": [np.int64, np.int32, np.int32, None],
    "reflector": [np.int64, np.int32, np.int32, None, None],
    "reflect": [np.int64, np.int32, np.int32, None, None],
    "cholesky": [np.int32, None, None],
}
#: steps, first, across; source, start, ld; target, origin, panel.
_PACK_ARGUMENTS: Final = [*(np.int64,) * 3, *(None, np.int64, np.int64) * 2]


def gemm_arguments(dtype: np.dtype[Any], shape: KernelShape) -> list[Any]:
    """Return the types of the multiply kernel's arguments; None for a buffer."""
    real = dtype.type(0).real.dtype
    operand = [None, *(np.int64,) * (2 if shape.packed else 3)]
    return [*(np.int64,) * 3, real, real, *operand * 2, real, real, None, np.int64, np.int64]


@dataclass(frozen=True, slots=True)
class Source:
    """A or B as the kernel reads it, in elements.

    `strides` holds the stride between panels, or, unpacked, the strides of op-space rows and
    columns.
    """

    memory: cl.Buffer
    start: int
    strides: tuple[int, ...]


class Rows(NamedTuple):
    """Rows in memory of the driver: the first one's first element, and from row to row, elements.

    C as the multiply kernel writes it.
    """

    memory: cl.Buffer
    start: int
    ld: int


@dataclass(frozen=True, slots=True)
class GemmCall:
    """C (m×n) := alpha·A·B + beta·C: the arguments of one kernel call."""

    extents: Extents
    alpha: complex
    a: Source
    b: Source
    beta: complex
    c: Rows

    def enqueue(
        self,
        queue: cl.CommandQueue,
        kernel: cl.Kernel,
        shape: KernelShape,
        dtype: np.dtype[Any],
        wait_for: Sequence[cl.Event] = (),
    ) -> cl.Event:
        """Set the arguments and launch; one thread at a time may use a kernel."""
        (m, n, k), a, b, c = self.extents, self.a, self.b, self.c
        alpha, beta = complex(self.alpha), complex(self.beta)
        kernel.set_args(
            m,
            n,
            k,
            alpha.real,
            alpha.imag,
            a.memory,
            a.start,
            *a.strides,
            b.memory,
            b.start,
            *b.strides,
            beta.real,
            beta.imag,
            *c,
        )
        groups_n = -(-n // (shape.block_n(dtype) * shape.walk_n))
        groups_m = -(-m // (shape.block_m() * shape.walk_m))
        grid = (groups_n * shape.dim_n, groups_m * shape.dim_m)
        return cl.enqueue_nd_range_kernel(
            queue, kernel, grid, (shape.dim_n, shape.dim_m), wait_for=list(wait_for)
        )


def groups(elements: int) -> int:
    """Return the work-items for so many elements, in whole work-groups."""
    return -(-elements // GROUP) * GROUP
