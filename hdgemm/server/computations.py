"""Products and routines that requests describe, with their options, as the library takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.options import Options
from hdgemm.server.backend import PlannedOperand, Problem, RoutineProblem
from hdgemm.server.models import (
    GemmInputs,
    JobOptions,
    LinalgInputs,
    QrInputs,
    SyrkInputs,
    VerifyInputs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hdgemm.server.references import Source
    from hdgemm.server.settings import Settings

#: The processes whose jobs a service with a cluster runs there.
_ON_CLUSTER: Final = frozenset({"gemm"})


def product_of(
    inputs: GemmInputs | VerifyInputs, sources: Mapping[str, Source], folder: Path
) -> Problem:
    """Check that shapes agree and return the product."""
    a, b = sources["a"].shape, sources["b"].shape
    m, k = a[::-1] if inputs.trans_a else a
    kb, n = b[::-1] if inputs.trans_b else b
    if k != kb:
        raise InputError(f"op(A) is {m}×{k} and op(B) is {kb}×{n}: {k} columns meet {kb} rows")
    if "c" in sources and sources["c"].shape != (m, n):
        raise InputError(f"C is {'×'.join(map(str, sources['c'].shape))}; the product is {m}×{n}")
    beta = inputs.beta if isinstance(inputs, GemmInputs) else 0.0
    if beta != 0.0 and "c" not in sources:
        raise InputError(f"beta is {beta}, and there is no C to scale by it")
    dtype = np.result_type(*(source.dtype for source in sources.values())).name
    read = ("a", "b", "c") if beta != 0.0 else ("a", "b")
    operands = {
        name: PlannedOperand(shape=source.shape, dtype=source.dtype, path=source.path)
        for name, source in sources.items()
        if name in read
    }
    return Problem(
        m=m, n=n, k=k, dtype=dtype, operands=operands, alpha=inputs.alpha, beta=beta,
        trans_a=inputs.trans_a, trans_b=inputs.trans_b, folder=folder,
    )  # fmt: skip


def routine_of(
    process: str, inputs: LinalgInputs, sources: Mapping[str, Source], folder: Path
) -> RoutineProblem:
    """Check that shapes agree and return the factorisation or the solve."""
    a = sources["a"].shape
    b = sources["b"].shape if "b" in sources else None
    if process in ("cholesky", "solve") and a[0] != a[1]:
        raise InputError(f"A is {a[0]}×{a[1]}: {process} takes square matrices")
    if process == "lstsq" and a[0] < a[1]:
        raise InputError(f"A is {a[0]}×{a[1]}: lstsq takes at least as many rows as columns")
    if b is not None and b[0] != a[0]:
        raise InputError(f"A has {a[0]} rows, and B {b[0]}: they must be as many")
    rows, cols = result_shape(inputs, a, b)
    return RoutineProblem(
        routine=process, m=rows, n=cols, parameters=inputs.parameters(), folder=folder,
        dtype=np.result_type(*(source.dtype for source in sources.values())).name,
        operands={
            name: PlannedOperand(shape=source.shape, dtype=source.dtype, path=source.path)
            for name, source in sources.items()
        },
    )  # fmt: skip


def result_shape(
    inputs: LinalgInputs, a: tuple[int, int], b: tuple[int, int] | None
) -> tuple[int, int]:
    """Return the extents of the result."""
    if b is not None:
        return a[1], b[1]
    if isinstance(inputs, QrInputs) and inputs.mode == "r":
        return min(a), a[1]
    if isinstance(inputs, SyrkInputs):
        return (a[1], a[1]) if inputs.trans else (a[0], a[0])
    return a


def job_options(inputs: GemmInputs | VerifyInputs | LinalgInputs) -> JobOptions:
    """Return the options as those of products."""
    if isinstance(inputs, LinalgInputs):
        return host_options(inputs.options.model_dump())
    return inputs.options


def given_options(process: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a job's inputs; LINPACK's device and threads are inputs themselves."""
    if process == "linpack":
        return {"devices": [inputs["device"]], "threads": inputs["threads"]}
    given: Mapping[str, Any] = inputs.get("options", {})
    return given


def host_options(options: Mapping[str, Any]) -> JobOptions:
    """Return the options of a routine, which runs on the host."""
    return JobOptions.model_validate({**options, "devices": ["host"]})


def on_cluster(settings: Settings, process: str) -> str:
    """Return the cluster that computes the jobs of a process; empty where a worker does."""
    return settings.cluster if process in _ON_CLUSTER else ""


def library_options(wanted: JobOptions, settings: Settings, process: str = "") -> Options:
    """Turn a request's options into the library's.

    Memory is what a worker has by default; "auto" is its first accelerator, or else the host: a
    job never touches a device that its worker was not given. The workers of a cluster fill in
    their own.
    """
    accelerators = [name for name in settings.devices if name != "host"]
    best: str = accelerators[0] if accelerators else "host"
    memory: int | str | None = settings.memory
    if on_cluster(settings, process):
        best, memory = "auto", None
    return Options(
        devices=best if wanted.devices == "auto" else tuple(wanted.devices),
        host_memory=memory if wanted.host_memory is None else wanted.host_memory,
        device_memory=wanted.device_memory,
        threads=wanted.threads,
        strategy=wanted.strategy,
        tile=None if wanted.tile is None else (wanted.tile[0], wanted.tile[1], wanted.tile[2]),
        verify=wanted.verify,
    )
