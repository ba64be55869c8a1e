"""OGC execute requests, and the descriptions of their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from hdgemm.routines.registry import commands
from hdgemm.server.models import (
    Common,
    GemmInputs,
    LinpackInputs,
    ProfileInputs,
    Strict,
    VerifyInputs,
    inputs_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.config import JsonDict

    from hdgemm.routines.description import Routine
    from hdgemm.server.tables import Process


class Format(Strict):
    """OGC's format of an output."""

    mediaType: Annotated[str, Field(max_length=200)] | None = None  # noqa: N815 - OGC's spelling
    encoding: Annotated[str, Field(max_length=200)] | None = None


class ReferencedOutput(Strict):
    """A matrix in the results: a link to it, or its bytes where it is the one output of "raw"."""

    transmissionMode: Literal["reference", "value"] | None = None  # noqa: N815
    format: Format | None = None


class InlineOutput(Strict):
    """A report in the results: always within them."""

    transmissionMode: Literal["value"] = "value"  # noqa: N815
    format: Format | None = None


class Subscriber(Strict):
    """OGC's callback addresses. They are accepted and not called: this server fetches no URL."""

    successUri: Annotated[str, Field(max_length=2000)] | None = None  # noqa: N815
    inProgressUri: Annotated[str, Field(max_length=2000)] | None = None  # noqa: N815
    failedUri: Annotated[str, Field(max_length=2000)] | None = None  # noqa: N815


class ReportOutputs(Strict):
    """The outputs that the results hold; all of them where none is named."""

    report: InlineOutput | None = None


class Execute(Strict):
    """OGC's execute request; `dry_run` answers with the plan and accepts no job."""

    dry_run: bool = False
    outputs: ReportOutputs | None = None
    response: Annotated[
        Literal["document", "raw"],
        Field(description="How `…/results` answers: a document, or raw: one output's own bytes."),
    ] = "document"
    subscriber: Subscriber | None = None

    @model_validator(mode="after")
    def _one_value(self) -> Self:
        """Refuse a matrix within a document or beside another output."""
        for name, matrix in () if self.outputs is None else self.outputs:
            if isinstance(matrix, InlineOutput) or matrix is None:
                continue
            alone = self.response == "raw" and self.chosen_outputs == [name]
            if matrix.transmissionMode == "value" and not alone:
                raise ValueError(
                    f'{name} has a value where "response" is "raw" and {name} is the one output'
                )
        return self

    @property
    def linked_outputs(self) -> list[str]:
        """The outputs that the request wants by reference."""
        named = () if self.outputs is None else self.outputs
        return [
            name for name, each in named if getattr(each, "transmissionMode", None) == "reference"
        ]

    @property
    def chosen_outputs(self) -> list[str] | None:
        """The outputs named; None for all."""
        named = self.outputs.model_fields_set if self.outputs is not None else None
        return sorted(named) if named else None


@dataclass(frozen=True, slots=True)
class Description:
    """A process: the model of its inputs, a sentence, an example, the outputs."""

    inputs: type[Common]
    title: str
    example: JsonDict
    outputs: tuple[str, ...] = ("c", "report")

    def request(self, process: Process) -> type[Execute]:
        """Return the model of its execute requests."""
        example: JsonDict = {"examples": [{"inputs": self.example}]}

        class Base(Execute):
            model_config = ConfigDict(json_schema_extra=example)

        outputs: Any = self._outputs(process)
        needed = any(field.is_required() for field in self.inputs.model_fields.values())
        return create_model(
            f"Execute{process.capitalize()}",
            __doc__=f"An execute request for `{process}`.",
            __base__=Base,
            outputs=(outputs | None, None),
            inputs=(self.inputs, ... if needed else self.inputs()),
        )

    def _outputs(self, process: Process) -> type[ReportOutputs]:
        """Return the model of the outputs that a request names."""
        matrices: dict[str, Any] = {
            name: (ReferencedOutput | None, None) for name in self.outputs if name != "report"
        }
        if not matrices:
            return ReportOutputs
        name = "Gemm" if self.outputs == ("c", "report") else process.capitalize()
        return create_model(
            f"{name}Outputs", __base__=ReportOutputs, __doc__=ReportOutputs.__doc__, **matrices
        )


_AB: Final[JsonDict] = {"a": {"path": "a.npy"}, "b": {"path": "b.npy"}}


def _of_routine(routine: Routine) -> Description:
    """Return the description of a routine's process."""
    example: JsonDict = {each.name: {"path": f"{each.name}.npy"} for each in routine.operands}
    arrays = tuple(x.name for x in routine.outputs if x.kind != "value" and not x.first)
    outputs = ("c", *arrays, "report") if routine.stores else ("report",)
    return Description(inputs_of(routine), routine.title, {**example, "name": "night run"}, outputs)


PROCESSES: Final[Mapping[Process, Description]] = {
    "gemm": Description(
        GemmInputs, "C := alpha·op(A)·op(B) + beta·C", {**_AB, "alpha": 2.0, "name": "night run"}
    ),
    **{name: _of_routine(routine) for name, routine in commands().items()},
    "verify": Description(
        VerifyInputs, "Freivalds' check of a finished product",
        {**_AB, "c": {"path": "c.npy"}}, ("report",),
    ),
    "profile": Description(
        ProfileInputs, "Contention between the resources of a device",
        {"device": "host", "quick": True}, ("report",),
    ),
    "linpack": Description(
        LinpackInputs, "HPL's benchmark on one machine",
        {"n": 5000, "nb": 192, "name": "this machine"}, ("report",),
    ),
}  # fmt: skip


def describe_inputs(model: type[BaseModel]) -> dict[str, Any]:
    """Return OGC's description of each input: its JSON schema, complete in itself."""
    schema = model.model_json_schema()
    definitions, required = schema.get("$defs", {}), schema.get("required", [])

    def complete(part: Any) -> Any:
        if isinstance(part, list):
            return [complete(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            named = definitions[part["$ref"].rpartition("/")[2]]
            part = {**named, **{key: part[key] for key in part if key != "$ref"}}
        return {key: complete(value) for key, value in part.items()}

    return {
        name: {
            "title": name,
            "minOccurs": int(name in required),
            "maxOccurs": 1,
            "schema": complete(part),
        }
        for name, part in schema["properties"].items()
    }
