"""OGC execute requests, and the descriptions of their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from hdgemm.server.models import (
    CholeskyInputs,
    Common,
    GemmInputs,
    LinpackInputs,
    LstsqInputs,
    LuInputs,
    ProfileInputs,
    QrInputs,
    SolveInputs,
    Strict,
    SyrkInputs,
    VerifyInputs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.config import JsonDict

    from hdgemm.server.tables import Process


class Format(Strict):
    """OGC's format of an output."""

    mediaType: Annotated[str, Field(max_length=200)] | None = None  # noqa: N815 - OGC's spelling
    encoding: Annotated[str, Field(max_length=200)] | None = None


class ReferencedOutput(Strict):
    """A matrix in the results: always a link to it."""

    transmissionMode: Literal["reference"] = "reference"  # noqa: N815
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


class GemmOutputs(ReportOutputs):
    """The outputs that the results hold; all of them where none is named."""

    c: ReferencedOutput | None = None


class Execute(Strict):
    """OGC's execute request; `dry_run` answers with the plan and accepts no job."""

    dry_run: bool = False
    outputs: ReportOutputs | None = None
    response: Annotated[
        Literal["document", "raw"],
        Field(description="How `…/results` answers: a document, or links in headers alone."),
    ] = "document"
    subscriber: Subscriber | None = None

    @property
    def chosen_outputs(self) -> list[str] | None:
        """The outputs named; None for all."""
        named = self.outputs.model_fields_set if self.outputs is not None else None
        return sorted(named) if named else None


_GEMM_EXAMPLE: Final[JsonDict] = {
    "inputs": {"a": {"path": "a.npy"}, "b": {"path": "b.npy"}, "alpha": 2.0, "name": "night run"}
}
_VERIFY_EXAMPLE: Final[JsonDict] = {
    "inputs": {"a": {"path": "a.npy"}, "b": {"path": "b.npy"}, "c": {"path": "c.npy"}}
}
_PROFILE_EXAMPLE: Final[JsonDict] = {"inputs": {"device": "host", "quick": True}}


class ExecuteGemm(Execute):
    """An execute request for `gemm`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_GEMM_EXAMPLE]})
    outputs: GemmOutputs | None = None
    inputs: GemmInputs


class ExecuteVerify(Execute):
    """An execute request for `verify`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_VERIFY_EXAMPLE]})
    inputs: VerifyInputs


class ExecuteProfile(Execute):
    """An execute request for `profile`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_PROFILE_EXAMPLE]})
    inputs: ProfileInputs = ProfileInputs()


_LINPACK_EXAMPLE: Final[JsonDict] = {"inputs": {"n": 5000, "nb": 192, "name": "this machine"}}


class ExecuteLinpack(Execute):
    """An execute request for `linpack`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_LINPACK_EXAMPLE]})
    inputs: LinpackInputs = LinpackInputs()


_FACTOR_EXAMPLE: Final[JsonDict] = {"inputs": {"a": {"path": "a.npy"}, "name": "night run"}}
_SOLVE_EXAMPLE: Final[JsonDict] = {
    "inputs": {"a": {"path": "a.npy"}, "b": {"path": "b.npy"}, "output": {"path": "x.npy"}}
}


class ExecuteCholesky(Execute):
    """An execute request for `cholesky`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_FACTOR_EXAMPLE]})
    outputs: GemmOutputs | None = None
    inputs: CholeskyInputs


class ExecuteLu(Execute):
    """An execute request for `lu`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_FACTOR_EXAMPLE]})
    outputs: GemmOutputs | None = None
    inputs: LuInputs


class ExecuteQr(Execute):
    """An execute request for `qr`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_FACTOR_EXAMPLE]})
    outputs: GemmOutputs | None = None
    inputs: QrInputs


class ExecuteSolve(Execute):
    """An execute request for `solve`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SOLVE_EXAMPLE]})
    outputs: GemmOutputs | None = None
    inputs: SolveInputs


class ExecuteLstsq(Execute):
    """An execute request for `lstsq`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SOLVE_EXAMPLE]})
    outputs: GemmOutputs | None = None
    inputs: LstsqInputs


class ExecuteSyrk(Execute):
    """An execute request for `syrk`."""

    model_config = ConfigDict(json_schema_extra={"examples": [_FACTOR_EXAMPLE]})
    outputs: GemmOutputs | None = None
    inputs: SyrkInputs


@dataclass(frozen=True, slots=True)
class Description:
    """A process: its request, a sentence, its outputs."""

    execute: type[Execute]
    title: str
    outputs: tuple[str, ...] = ("c", "report")

    @property
    def inputs(self) -> type[Common]:
        """The model of its inputs."""
        model: type[Common] = self.execute.model_fields["inputs"].annotation  # type: ignore[assignment]
        return model


PROCESSES: Final[Mapping[Process, Description]] = {
    "gemm": Description(ExecuteGemm, "C := alpha·op(A)·op(B) + beta·C"),
    "cholesky": Description(ExecuteCholesky, "Cholesky factor of a positive definite matrix"),
    "lu": Description(ExecuteLu, "LU factors with partial pivoting"),
    "qr": Description(ExecuteQr, "QR factorisation: R, or the reflectors"),
    "solve": Description(ExecuteSolve, "Solution X of A·X = B"),
    "lstsq": Description(ExecuteLstsq, "Least-squares solution of a tall A·X = B"),
    "syrk": Description(ExecuteSyrk, "One triangle of A·A^T or A^T·A"),
    "verify": Description(ExecuteVerify, "Freivalds' check of a finished product", ("report",)),
    "profile": Description(
        ExecuteProfile, "Contention between the resources of a device", ("report",)
    ),
    "linpack": Description(ExecuteLinpack, "HPL's benchmark on one machine", ("report",)),
}


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
