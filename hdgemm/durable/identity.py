"""What makes a command the same command: routine, arguments, inputs, place of the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hdgemm.durable.fingerprint import Fingerprint, changed_fields, differences, fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.durable.place import ResultPlace
    from hdgemm.matrices.base import Operand


@dataclass(frozen=True, slots=True)
class Identity:
    """One command, told from every other one.

    Parameters
    ----------
    routine, arguments
        Its name, and the arguments that decide the result, as plain values.
    inputs
        Fingerprints of the matrices that are read, by name.
    target
        What of the result's place must not change, see `ResultPlace.target`.
    replaced
        Names of the inputs that lie where the result will be: they are gone when it is published.
    """

    routine: str
    arguments: Mapping[str, Any]
    inputs: Mapping[str, Fingerprint]
    target: Mapping[str, Any]
    replaced: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        routine: str,
        arguments: Mapping[str, Any],
        inputs: Mapping[str, Operand],
        place: ResultPlace,
    ) -> Identity:
        """Take fingerprints of the inputs."""
        prints = {name: fingerprint(operand) for name, operand in inputs.items()}
        replaced = [name for name, operand in inputs.items() if place.holds(operand)]
        return cls(routine, dict(arguments), prints, place.target(), replaced)

    def to_record(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def differences(self, before: Identity, *, published: bool) -> list[str]:
        """Say in words how an earlier command differs from this one; empty when it does not.

        Once its result is `published`, the inputs that it has replaced may be others.
        """
        found = changed_fields({"the routine": before.routine}, {"the routine": self.routine})
        found += changed_fields(before.arguments, self.arguments)
        found += changed_fields(before.target, self.target, "out's ")
        gone = set(before.replaced) if published else set()
        for name in sorted({*before.inputs, *self.inputs} - gone):
            found += differences(name, before.inputs.get(name, {}), self.inputs.get(name, {}))
        return found
