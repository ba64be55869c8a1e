"""The devices of a run, each with its plan: the preflight of every product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.pipeline.devices.registry import first_accelerator, parts_of
from hdgemm.planning.planner import plan_for
from hdgemm.run.operand_paths import direct_operands, gpu_of, problem_on
from hdgemm.run.regions import fixed_regions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path as FilePath

    from hdgemm.errors import AllocationError
    from hdgemm.options import Options
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Plan, Problem
    from hdgemm.product.product import Product
    from hdgemm.progress import Callbacks
    from hdgemm.run.session import Session

#: Products below this many flop are not worth asking drivers for an accelerator.
WORTH_AN_ACCELERATOR: Final = 10**10
#: Part of the memory that was refused which is asked for next.
_NEXT: Final = 0.75


@dataclass(frozen=True, slots=True)
class Member:
    """A device that takes part in a run. With several, its plan gives slots, rings, paths and the
    tile only: units are drawn.

    `refused` are allocations that the device refused, for which the product was planned again.
    """

    name: str
    device: Device
    plan: Plan
    refused: tuple[AllocationError, ...] = ()

    def replanned(self) -> dict[str, Any]:
        """Describe the refused allocations for a report; empty where there were none."""
        found = [{"refused_bytes": e.planned, "because": str(e)} for e in self.refused]
        return {"replanned": found} if found else {}


def names_for(options: Options, flops: int, home: str | None = None) -> tuple[str, ...]:
    """Return the names of the devices that compute a product of so many flop.

    ``"auto"`` takes the GPU that an operand lies on; else an accelerator with memory of its own,
    where there is one and the product is large enough; else the host. The strategy ``"hybrid"``
    adds the host to accelerators.
    """
    if options.devices == "auto":
        large = flops >= WORTH_AN_ACCELERATOR
        names: tuple[str, ...] = (home or (best_device() if large else "host"),)
    else:
        given = (options.devices,) if isinstance(options.devices, str) else options.devices
        names = tuple(part for name in given for part in parts_of(name))
    if not names:
        raise InputError("no device is named; devices='auto' chooses one")
    if options.strategy == "hybrid" and "host" not in names:
        names = (*names, "host")
    if len(set(names)) < len(names):
        raise InputError(f"a device is named twice: {', '.join(names)}; name each once")
    return names


def device_names(options: Options) -> tuple[str, ...]:
    """Return the devices other than the host that a factorisation is asked to use."""
    names = (options.devices,) if isinstance(options.devices, str) else options.devices
    return tuple(part for name in names for part in parts_of(name) if part not in ("auto", "host"))


def update_devices(options: Options) -> tuple[str, ...]:
    """Return the devices of the options that compute updates; () for the host alone.

    Beside them the host factors panels, and takes no part in the updates.
    """
    if not device_names(options):
        return ()
    return tuple(name for name in names_for(options, 0) if name != "host")


@cache
def best_device() -> str:
    """Return the first usable accelerator with memory of its own, else the host; asks once."""
    return first_accelerator() or "host"


def plan_members(
    problem_for: Callable[[Device], Problem],
    names: Sequence[str],
    options: Options,
    session: Session,
    *,
    folder: FilePath | None = None,
    callbacks: Callbacks | None = None,
) -> list[Member]:
    """Open the devices and plan the product for each; `DoesNotFitError` when one cannot hold a
    tile.

    The run, `hdgemm plan` and the service's dry run all plan here, with the same inputs.
    `problem_for` describes the product to the planner, as a device reaches its operands. `folder`
    has the product's files: the speed of its disk counts.
    """
    members = []
    for name in names:
        device = session.device(name, options)
        problem = problem_for(device)
        machine = session.machine(device.spec, problem, folder, options.threads, callbacks)
        plan = plan_for(problem, options, device.spec, machine, members=len(names))
        members.append(Member(device.spec.name, device, plan))
    if len({member.name for member in members}) < len(members):
        named = ", ".join(member.name for member in members)
        raise InputError(f"a device is named twice: {named}; name each once")
    fixed_regions(1, 1, options.split, [member.name for member in members])
    return members


def preflight(
    product: Product, options: Options, session: Session, callbacks: Callbacks | None = None
) -> list[Plan]:
    """Return the plans that a run of this product would execute, one for each device.

    Devices are opened, nothing is read and nothing is computed. With several devices a plan says
    how its device cuts the tiles that it draws.
    """
    if not product.reads_product:
        return []
    product = product.row_major()
    names = names_for(options, product.flops, gpu_of(product))
    direct = direct_operands(shared=len(names) > 1, durable=False)
    with session.running(options):
        members = plan_members(
            partial(problem_on, product, direct=direct),
            names,
            options,
            session,
            folder=product.folder,
            callbacks=callbacks,
        )
    return [member.plan for member in members]


def with_less_memory(
    member: Member,
    error: AllocationError,
    options: Options,
    session: Session,
    folder: FilePath | None,
    members: int,
) -> Member:
    """Plan again for a device that refused an allocation, with the memory that is free now.

    Nothing was computed when an allocation is refused, so nothing is computed twice. The cause of a
    `DoesNotFitError` is the refusal.
    """
    # The traceback's frames refer to the device that is closed now.
    refused = (*member.refused, error.with_traceback(None))
    device = session.reopen(member.device)
    smaller = replace(options, device_memory=max(1, int(error.planned * _NEXT)))
    machine = session.machine(device.spec, member.plan.problem, folder, options.threads)
    try:
        plan = plan_for(member.plan.problem, smaller, device.spec, machine, members=members)
    except DoesNotFitError as too_large:
        raise too_large from refused[-1]
    return Member(member.name, device, plan, refused)
