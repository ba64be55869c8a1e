"""The plans of one product on several devices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hdgemm.pipeline.plan import Plan, held_line, plan_html, plan_lines, plan_text, summarize
from hdgemm.plan_terms import terms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.plan import Stage

#: Devices whose plans are printed; the others are counted.
_MOST_DEVICES: Final = 4


class Plans(list[Plan]):
    """Plans of one product, one for each device; printed as `hdgemm plan` prints them.

    Several devices draw tiles from one pool: their time is not known before the run.
    """

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory held for all devices."""
        return sum(plan.host_bytes for plan in self)

    @property
    def host_limit(self) -> int:
        """The limits in bytes that the plans were made for, in all."""
        return sum(plan.host_limit for plan in self)

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves, where the first device computes all tiles."""
        return self[0].planned_bytes if self else {}

    @property
    def flops(self) -> int:
        """Floating-point operations of the product."""
        return self[0].flops if self else 0

    @property
    def expected_seconds(self) -> float | None:
        """Expected duration; None with several devices."""
        return self[0].expected_seconds if len(self) == 1 else None

    @property
    def expected_phase_seconds(self) -> Mapping[str, float]:
        """Expected busy seconds of each stage; {} with several devices."""
        return self[0].expected_phase_seconds if len(self) == 1 else {}

    @property
    def expected_limit(self) -> str | None:
        """What determines the duration; None with several devices."""
        return self[0].expected_limit if len(self) == 1 else None

    def summary(self) -> dict[str, Any]:
        """Return shape, tiles, memory and expectations as plain values, for reports."""
        members = [summarize(plan) for plan in self]
        if len(members) == 1:
            return members[0]
        same = ("m", "n", "k", "dtype", "strategy", "in_place", "tile")
        summed = ("staging_bytes", "device_bytes")
        return {
            **{name: members[0][name] for name in same},
            **{name: sum(member[name] for member in members) for name in summed},
            **terms(self),
            "members": members,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: the plan of each device, and all together."""
        return {"devices": [plan.to_dict() for plan in self], **terms(self)}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the plans as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        if not self:
            return "nothing is multiplied: alpha is 0 or an extent is 0"
        if len(self) == 1:
            return plan_text(self[0])
        lines = plan_lines(self[0])[:1]
        for plan in self[:_MOST_DEVICES]:
            lines += [*plan_lines(plan, alone=False)[1:], held_line(plan), ""]
        if len(self) > _MOST_DEVICES:
            lines.append(f"and {len(self) - _MOST_DEVICES} more devices")
        lines.append("The devices draw tiles of C from one pool while the run lasts.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return "".join(map(plan_html, self)) or f"<p>{self}</p>"
