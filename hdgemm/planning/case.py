"""The input of every planning function: one product on one device, with its limits and rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from hdgemm.machine.rates import Machine
from hdgemm.matrices.layout import check_decoded
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.pipeline.abft import TileChecks
from hdgemm.pipeline.devices.widened_gemm import SUM_BYTES
from hdgemm.pipeline.plan import DeviceSpec, Overlap, flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.options import Options
    from hdgemm.pipeline.plan import OperandSpec, Plan, Problem

#: The stages that each strategy of the paper's ladder overlaps (HDGEMM, algorithms 1 to 4).
OVERLAPS: Final[Mapping[str, Overlap]] = {
    "initial": Overlap(loads=False, stores=False, c_on_device=False),
    "double-buffering": Overlap(loads=False, stores=True, c_on_device=False),
    "data-reuse": Overlap(loads=True, stores=True, c_on_device=False),
    "data-placement": Overlap(loads=True, stores=True, c_on_device=True),
    "hybrid": Overlap(loads=True, stores=True, c_on_device=True),
}

#: Memory for planning, and for the threads, schedule and events of some thousand operations.
_BASE_BYTES: Final = 12 << 20
#: Memory that h5py and zarr take beside the chunks that are decoded, and the chunks that are held
#: at once: two, as stored and decoded.
_DECODE_BYTES: Final = 18 << 20
_DECODED: Final = 4
#: Memory for ABFT checksums, the panels they are computed from and inputs read again: this part
#: of a limit, and at most this many bytes.
_CHECKS_PART: Final = 32
_CHECKS_MOST: Final = 32 << 20
#: Part of a limit that sums of half of C's precision take at most.
_SUMS_PART: Final = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that a plan may hold in host memory and on its device."""

    host: int
    device: int


@dataclass(frozen=True, slots=True)
class Case:
    """One product to be planned for one device.

    Parameters
    ----------
    strategy
        A step of the paper's ladder, of `hdgemm.options.STRATEGIES`.
    limits
        Bytes for slots and staging alone: bounce buffers and checks are subtracted.
    machine
        Rates with which shapes are priced.
    whole_units
        Each work unit has all rows of its A tiles: a device with memory of its own computes the
        ABFT checksums of an A tile while it is uploaded, over all its rows.
    """

    problem: Problem
    device: DeviceSpec
    strategy: str
    limits: Limits
    machine: Machine = field(default_factory=Machine)
    whole_units: bool = False

    @property
    def largest_slot(self) -> int:
        """Bytes of the largest slot that the device can allocate."""
        return self.device.max_buffer_bytes or max(self.limits.host, self.limits.device)

    @property
    def overlap(self) -> Overlap:
        """The stages that run at once."""
        return OVERLAPS[self.strategy]


def case_for(
    problem: Problem, options: Options, device: DeviceSpec, machine: Machine, members: int
) -> Case:
    """Derive the limits and rates of one device's plan from what the whole run may take.

    The machine's `host_bytes` are the limit where the options name none. `members` devices share
    the host memory, each an equal part.
    """
    share = (options.host_bytes or machine.host_bytes) // members
    if problem.in_files:
        for name, spec in zip("ABC", (problem.a, problem.b, problem.c), strict=True):
            check_decoded(_chunk_bytes(spec) * spec.encoded, name, share * members)
    host = share - reserved_bytes(problem, share * members) // members
    on_device = device.limit(options.device_bytes) or share
    checks = options.checks_tiles
    problem = checked_problem(problem, options)
    if problem.exact_terms:
        host -= summing_bytes(machine, host)
    if checks:
        host -= checking_bytes(host)
        if device.unified:
            machine = machine_that_checks(machine, problem)
        else:
            on_device -= checking_bytes(on_device)
    # Free memory beyond the limit changes no plan, and must not change the key of a cached one.
    machine = replace(machine, host_bytes=share)
    whole_units = checks and not device.unified
    limits = Limits(host, on_device)
    return Case(problem, device, options.strategy, limits, machine, whole_units)


def checked_problem(problem: Problem, options: Options) -> Problem:
    """Return a problem as it is planned: ABFT checks tiles of A, B and C in one precision."""
    return replace(problem, exact_terms=0) if options.checks_tiles else problem


def reserved_bytes(problem: Problem, limit: int) -> int:
    """Return the part of a run's memory that is not slots or staging.

    Planning takes some, as do the executor's threads, schedule and events; and for files the
    buffers through which elements are converted and chunks are decoded.
    """
    if problem.in_files:
        specs = problem.a, problem.b, problem.c
        if chunks := [_chunk_bytes(spec) for spec in specs if spec.encoded]:
            decoding = _DECODE_BYTES + _DECODED * max(chunks)
            return min(_BASE_BYTES + BOUNCE_BYTES + decoding, 5 * limit // 8)
        return min(_BASE_BYTES + BOUNCE_BYTES, limit // 2)
    return min(_BASE_BYTES, limit // 8)


def _chunk_bytes(spec: OperandSpec) -> int:
    return math.prod(spec.chunk or (0,)) * spec.itemsize


def summing_bytes(machine: Machine, limit: int) -> int:
    """Return the bytes of a limit in which threads form sums of half of C's precision."""
    return min((machine.cores + 1) * SUM_BYTES, limit // _SUMS_PART)


def checking_bytes(limit: int) -> int:
    """Return the bytes that ABFT checks take of a limit in bytes."""
    return min(_CHECKS_MOST, limit // _CHECKS_PART)


def machine_that_checks(machine: Machine, problem: Problem) -> Machine:
    """Return the rates of a host whose cores also compute ABFT checksums.

    Each step reads its A and its B once more. The model counts that as a cost of a tile's edges,
    so that flat tiles are priced as slow as they are.
    """
    flops = flops_per_multiply_add(problem.dtype) * machine.memory
    edge = problem.itemsize * machine.flop_rate(problem.dtype) / flops
    return replace(machine, side_half=machine.side_half + edge)


def checks_for(options: Options, plan: Plan) -> TileChecks | None:
    """Return the counters and scratch of a run's ABFT checks, None where none are asked for."""
    if not options.checks_tiles:
        return None
    limits = [plan.host_limit] if plan.device.unified else [plan.host_limit, plan.device_limit]
    return TileChecks(scratch_bytes=min(map(checking_bytes, limits)) // 4)
