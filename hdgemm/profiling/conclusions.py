"""What a verdict consists of, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interference:
    """Something else on this machine that takes a resource away.

    Parameters
    ----------
    resource
        ``"host_memory"``, ``"disk"`` or ``"cores"``.
    taken
        The part of the resource that is gone; None where it cannot be told how much.
    evidence
        The figures that say so.
    """

    resource: str
    taken: float | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What would help, and by how much the model (or a measurement) says."""

    what: str
    gain: float
    source: str = "model"


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation of the paper on this machine; `confirmed` is None where it cannot be told."""

    number: int
    claim: str
    confirmed: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The limiting resource of this machine, in words.

    Parameters
    ----------
    limit
        A resource: of `hdgemm.machine.rates.RESOURCES`.
    gain
        How much faster the run would be with twice of it.
    text
        Sentences for a person, the most important first.
    """

    limit: str
    gain: float
    text: tuple[str, ...]
    advice: tuple[Advice, ...] = ()
    observations: tuple[Observation, ...] = ()
