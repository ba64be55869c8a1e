"""Request bodies: strict types, bounded values, no unknown members."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)

from hdgemm.dtypes import StoredDTypeName  # noqa: TC001  (Pydantic reads it)
from hdgemm.errors import InputError
from hdgemm.options import parse_size
from hdgemm.server.tables import DEFAULT_PRIORITY
from hdgemm.tables import is_printable

if TYPE_CHECKING:
    from hdgemm.routines.description import Parameter, Routine


#: Largest number of JSON, largest whole number, and the most numbers of one input.
_LARGEST: Final = 1.7e308
_WHOLE: Final = 1 << 53
_MOST_NUMBERS: Final = 1000


def _number(value: object) -> object:
    """Refuse values that JSON parsers accept: booleans, NaN, Infinity, integers beyond float64."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        # Pydantic reports a ValueError; a TypeError would be a fault of the server.
        raise ValueError("must be a number")  # noqa: TRY004
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("must be a finite float64") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite float64")
    return number


def _size(value: int | str) -> int | str:
    try:
        return parse_size(value)
    except (InputError, OverflowError):
        raise ValueError("must be at least 1 byte and less than 2**62") from None


def _printable(value: str) -> str:
    wrong = next((each for each in value if not is_printable(each)), None)
    if wrong is not None:
        raise ValueError(f"must hold printable characters only, not U+{ord(wrong):04X}")
    return value


def _finite(least: float | None = None, most: float | None = None) -> Any:
    """Return the type of finite numbers within bounds."""
    bounds = (-_LARGEST if least is None else least), (_LARGEST if most is None else most)
    bounded = Annotated[float, Field(ge=bounds[0], le=bounds[1], allow_inf_nan=False)]
    return Annotated[bounded, BeforeValidator(_number, json_schema_input_type=bounded)]


if TYPE_CHECKING:
    Number: TypeAlias = float
else:
    Number = _finite()
Id = Annotated[
    str, Field(min_length=32, max_length=32, pattern=r"^[0-9a-f]{32}$", examples=["0" * 32])
]
Name = Annotated[
    str,
    Field(max_length=200, examples=["night run"]),
    AfterValidator(_printable),
]
PathText = Annotated[
    str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$", examples=["a.npy"])
]
Size = Annotated[
    Annotated[int, Field(ge=1, le=1 << 62)]
    | Annotated[
        str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,6})?[KMGTkmgt]?i?[Bb]?$", examples=["1.5GB"])
    ],
    AfterValidator(_size),
]
Extent = Annotated[int, Field(ge=0, le=1 << 40)]


#: Members of OGC's qualified value.
_QUALIFIED: Final = {"value", "mediaType", "encoding", "schema"}


class Strict(BaseModel):
    """No coercion, no unknown members."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class PathReference(Strict):
    """A .npy file that the server can reach: inside its roots, absolute or relative to one."""

    path: PathText


class MatrixReference(Strict):
    """A matrix that was uploaded before."""

    matrix: Id


class JobReference(Strict):
    """The result of another job, which this one waits for."""

    job: Id


Reference = PathReference | MatrixReference | JobReference


class Output(Strict):
    """Where the result goes: kept by the server, or into a file inside its roots."""

    path: PathText | None = None
    format: Literal["npy"] = "npy"
    overwrite: Annotated[bool, Field(description="Replace a file that has that name.")] = False


DeviceName = Annotated[
    str,
    Field(
        pattern=r"^(host|cuda:[0-9]{1,3}|opencl:[0-9]{1,3}(/[0-9]{1,2}(:[0-9]{1,2})?)?)$",
        examples=["host", "opencl:0", "cuda:0"],
    ),
]
TileExtent = Annotated[int, Field(ge=1, le=1 << 31)]


class JobOptions(Strict):
    """How the product is computed; see `hdgemm.Options`."""

    devices: Literal["auto"] | Annotated[list[DeviceName], Field(min_length=1, max_length=16)] = (
        "auto"
    )
    host_memory: Size | None = None
    device_memory: Size | None = None
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    strategy: Literal["initial", "double-buffering", "data-reuse", "data-placement", "hybrid"] = (
        "data-placement"
    )
    tile: Annotated[
        Annotated[list[TileExtent], Field(min_length=3, max_length=3)] | None,
        Field(description="Extents along m, n and k."),
    ] = None
    verify: bool | Literal["tiles"] = False


class Common(Strict):
    """Inputs of every process."""

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, value: object) -> object:
        """Take OGC's qualified values, ``{"value": …, "mediaType": …}``, for the values."""
        if not isinstance(value, dict):
            return value
        return {
            name: item["value"]
            if isinstance(item, dict) and "value" in item and item.keys() <= _QUALIFIED
            else item
            for name, item in value.items()
        }

    name: Name = ""
    priority: Annotated[int, Field(ge=-100, le=100)] = DEFAULT_PRIORITY


class GemmInputs(Common):
    """C := alpha·op(A)·op(B) + beta·C; op transposes where `trans_a`, `trans_b` say so."""

    a: Reference
    b: Reference
    c: Reference | None = None
    alpha: Number = 1.0
    beta: Number = 0.0
    trans_a: bool = False
    trans_b: bool = False
    output: Output = Field(default_factory=Output)
    options: JobOptions = JobOptions()


class VerifyInputs(Common):
    """Check by Freivalds' method that C = op(A)·op(B)."""

    a: Reference
    b: Reference
    c: Reference
    alpha: Number = 1.0
    trans_a: bool = False
    trans_b: bool = False
    options: JobOptions = JobOptions()


class ProfileInputs(Common):
    """Measure how the resources of one device slow each other down.

    It runs alone on its worker: what else ran there would be measured too.
    """

    device: DeviceName = "host"
    quick: Annotated[bool, Field(description="Within a minute; else within ten.")] = True


class LinpackInputs(Common):
    """Run HPL's benchmark in one process: a random system is solved and its residual checked."""

    n: Annotated[int, Field(ge=1, le=1_000_000, description="Order of the system.")] = 5000
    nb: Annotated[int, Field(ge=1, le=10_000, description="Columns of a panel.")] = 192
    depth: Annotated[int, Field(ge=0, le=16, description="Lookahead in panels.")] = 1
    mxp: Annotated[
        bool, Field(description="HPL-MxP: factor in single precision, refine to double.")
    ] = False
    device: DeviceName = "host"
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None


class LinalgOptions(Strict):
    """How a routine is computed; see `hdgemm.Options`."""

    host_memory: Size | None = None
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    tile: Annotated[
        Annotated[list[TileExtent], Field(min_length=3, max_length=3)] | None,
        Field(description="Slabs of the second number of columns, blocks of the third."),
    ] = None


class DeviceOptions(LinalgOptions):
    """How a routine is computed in which devices take part; the host alone by default."""

    devices: Annotated[
        list[DeviceName],
        Field(min_length=1, max_length=16, description="Devices that update slabs, or multiply."),
    ] = ["host"]
    device_memory: Size | None = None


def inputs_of(routine: Routine) -> type[Common]:
    """Return the model of the inputs of a routine's process."""
    fields: dict[str, Any] = {each.name: (Reference, ...) for each in routine.operands}
    if routine.stores:
        fields["output"] = (Output, Field(default_factory=Output))
    options = DeviceOptions if routine.devices else LinalgOptions
    fields["options"] = (options, options())
    for each in routine.shown:
        fields[each.name] = (_values(each), Field(each.default, description=each.help))
    for output in routine.outputs:
        if output.optional:
            text = f"Store {output.name}, too, beside the result."
            fields[output.name] = (bool, Field(default=False, description=text))
    model: type[Common] = create_model(
        f"{routine.name.capitalize()}Inputs", __base__=Common, __doc__=routine.summary, **fields
    )
    return model


def _as_choice(choices: tuple[str, ...], value: object) -> object:
    """Return a number as the choice that is its text, such as 2 or infinity."""
    text = f"{value:g}" if type(value) in {int, float} else None
    return text if text in choices else value


def _as_list(value: object) -> object:
    """Return a number as a list of one."""
    return [value] if type(value) in {int, float} else value


def _values(parameter: Parameter) -> Any:
    """Return the type of a parameter's values, with its bounds."""
    kind: Any
    if parameter.choices:
        kind = parameter.annotation
        text = partial(_as_choice, parameter.choices)
        return Annotated[kind, BeforeValidator(text, json_schema_input_type=kind)]
    if parameter.type is bool:
        return parameter.annotation
    least, most = parameter.least, parameter.most
    if parameter.type is str:
        kind = Annotated[str, Field(max_length=200)]
    elif parameter.type is int:
        bounds = (-_WHOLE if least is None else least), (_WHOLE if most is None else most)
        kind = Annotated[int, Field(ge=bounds[0], le=bounds[1])]
    elif parameter.type is float:
        kind = _finite(least, most)
    else:
        number = _finite(least, most)
        field = Field(max_length=_MOST_NUMBERS, examples=[[1, 10]])
        numbers = Annotated[list[number], field]  # type: ignore[valid-type]
        kind = Annotated[numbers, BeforeValidator(_as_list, json_schema_input_type=numbers)]
    return kind | None if parameter.default is None else kind


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class NewMatrix(Strict):
    """A matrix to be uploaded.

    `raw` content is the elements alone; `npy` content is a whole .npy file, of `size` bytes, by
    default the usual 128-byte header and the elements.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "a", "shape": [1000, 1000], "dtype": "float64"}],
        }
    )

    name: Name = ""
    shape: Annotated[list[Extent], Field(min_length=2, max_length=2)]
    dtype: StoredDTypeName = "float64"
    order: Literal["C", "F"] = "C"
    format: Literal["raw", "npy"] = "raw"
    size: Annotated[int, Field(ge=0, le=1 << 50)] | None = None
    sha256: Annotated[Sha256 | None, Field(description="Of the content that will be uploaded.")] = (
        None
    )
