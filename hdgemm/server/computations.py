"""Products and routines that requests describe, with their options, as the library takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError
from hdgemm.matrices.layout import as_dtype
from hdgemm.options import Options
from hdgemm.product.arguments import stored_dtype
from hdgemm.routines.registry import commands
from hdgemm.server.backend import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from hdgemm.server.backend import Source
    from hdgemm.server.settings import Settings

#: The options of a job that named none; `models.JobOptions` shows them to clients.
_OPTIONS: Final = {
    "devices": "auto", "host_memory": None, "device_memory": None, "threads": None,
    "strategy": "data-placement", "tile": None, "verify": False,
}  # fmt: skip
#: The processes whose jobs a service with a cluster runs there.
_ON_CLUSTER: Final = frozenset({"gemm"})


def operands_of(process: str) -> tuple[str, ...]:
    """Return the inputs of a process that are matrices; it need not be given all of them."""
    if process in commands():
        return tuple(each.name for each in commands()[process].operands)
    return ("a", "b", "c")


def parameters_of(process: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the process's own parameters among a job's inputs."""
    others = {*operands_of(process), "output", "options"}
    return {name: value for name, value in inputs.items() if name not in others}


def stores_matrix(process: str) -> bool:
    """Say whether the jobs of a product or routine store a matrix."""
    return commands()[process].stores if process in commands() else process == "gemm"


def problem_of(
    process: str, inputs: Mapping[str, Any], sources: Mapping[str, Source], folder: Path
) -> Problem:
    """Check that shapes agree and return the product, the factorisation or the solve."""
    parameters = parameters_of(process, inputs)
    shapes = {name: source.shape for name, source in sources.items()}
    extents = (_of_routine if process in commands() else _of_product)(process, parameters, shapes)
    dtype = _result_dtype(process, parameters, sources).name
    return Problem(
        process=process, **extents, dtype=dtype, operands=sources, parameters=parameters,
        folder=folder,
    )  # fmt: skip


def _result_dtype(
    process: str, parameters: Mapping[str, Any], sources: Mapping[str, Source]
) -> np.dtype[Any]:
    """Return the dtype of the result, as the library chooses it."""
    dtypes = tuple(as_dtype(source.dtype) for source in sources.values())
    is_product = process in ("gemm", "topk")
    whole = is_product and "c" not in sources and parameters.get("alpha", 1.0) == 1
    return stored_dtype(dtypes, whole=whole)


def _of_product(
    _: str, parameters: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    m, k = shapes["a"][::-1] if parameters["trans_a"] else shapes["a"]
    kb, n = shapes["b"][::-1] if parameters["trans_b"] else shapes["b"]
    if k != kb:
        raise InputError(f"op(A) is {m}×{k} and op(B) is {kb}×{n}: {k} columns meet {kb} rows")
    if shapes.get("c", (m, n)) != (m, n):
        raise InputError(f"C is {'×'.join(map(str, shapes['c']))}; the product is {m}×{n}")
    beta = parameters.get("beta", 0.0)
    if beta != 0.0 and "c" not in shapes:
        raise InputError(
            f"beta is {beta}, but there is no C to multiply: give c, or leave beta out"
        )
    return {"m": m, "n": n, "k": k}


def _of_routine(
    process: str, parameters: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """Return the extents of a routine's result, or of A where it stores none."""
    routine = commands()[process]
    found, result = routine.extents(shapes, parameters), routine.first(parameters)
    shape = shapes["a"] if result is None else result.shape(found, parameters)
    return {"m": shape[0], "n": shape[1] if len(shape) > 1 else 1}


def job_options(process: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job's inputs, of a routine and of LINPACK, too, as a product's."""
    given = inputs.get("options", {})
    if process == "linpack":
        given = {"devices": [inputs["device"]], "threads": inputs["threads"]}
    elif process in commands():
        given = {"devices": ["host"], **given}
    return {**_OPTIONS, **given}


def on_cluster(settings: Settings, process: str) -> str:
    """Return the cluster that computes the jobs of a process; empty where a worker does."""
    return settings.cluster if process in _ON_CLUSTER else ""


def library_options(wanted: Mapping[str, Any], settings: Settings, process: str = "") -> Options:
    """Turn a request's options, as `job_options` returns them, into the library's.

    Memory is what a worker has by default; "auto" is its first accelerator, or else the host: a
    job never touches a device that its worker was not given. The workers of a cluster fill in
    their own.
    """
    accelerators = [name for name in settings.devices if name != "host"]
    best: str = accelerators[0] if accelerators else "host"
    memory: int | None = settings.memory
    if on_cluster(settings, process):
        best, memory = "auto", None
    changed = {
        "devices": best if wanted["devices"] == "auto" else tuple(wanted["devices"]),
        "host_memory": memory if wanted["host_memory"] is None else wanted["host_memory"],
        "tile": None if wanted["tile"] is None else tuple(wanted["tile"]),
    }
    return Options(**{**wanted, **changed})
