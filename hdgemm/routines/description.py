"""Description of one routine: operands, parameters, outputs, and where its functions are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Extents of the operands by name, such as m, n and p; k is min(m, n).
Extents: TypeAlias = Mapping[str, int]
#: The routine's parameters by name, as far as they are given.
Given: TypeAlias = Mapping[str, Any]
Shape: TypeAlias = Callable[[Extents, Given], tuple[int, ...]]

#: Name of the option, and of the input of a process, that places the first output.
OUT: Final = "out"


def extents(*names: str) -> Shape:
    """Return the shape with the extents of these names: ``extents("m", "n")``."""
    return lambda sizes, _: tuple(sizes[name] for name in names)


def load(where: str) -> Any:
    """Return the function ``"module:name"``, which is imported now."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def always(_: Given) -> bool:
    """Return True, whatever the parameters are."""
    return True


def never(_: Given) -> bool:
    """Return False, whatever the parameters are."""
    return False


def _itself(found: Any) -> Any:
    return found


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix that a routine reads.

    Parameters
    ----------
    name
        A small letter.
    rows, columns
        Names of its extents. One name for both makes it square; a name that an earlier operand has
        stands for the same number.
    trans
        Name of the parameter with which the matrix is stored transposed; "" without one.
    """

    name: str
    rows: str
    columns: str
    trans: str = ""

    @property
    def square(self) -> bool:
        """Whether it has as many rows as columns."""
        return self.rows == self.columns

    def stored(self, given: Given) -> tuple[str, str]:
        """Return the names of the extents of the matrix as it is stored."""
        return (self.columns, self.rows) if given.get(self.trans) else (self.rows, self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An argument of a routine that is no matrix.

    Parameters
    ----------
    name
        The keyword of the function, the input of the process and, with hyphens, the option.
    help
        One line.
    type
        bool, int, float, str, or ``list[float]`` for several numbers.
    default
        The value of who gives none. None adds None to the type.
    choices
        The texts that are allowed. One choice and the default None make a flag on the command
        line.
    least, most
        Bounds of a number, or of each number.
    python
        It is an argument of the functions and of plans alone.
    """

    name: str
    help: str
    type: Any = bool
    default: Any = False
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    python: bool = False

    @property
    def annotation(self) -> Any:
        """The type of its values, without bounds."""
        kind: Any = Literal[self.choices] if self.choices else self.type
        return kind | None if self.default is None else kind

    @property
    def is_flag(self) -> bool:
        """Whether it is a flag on the command line."""
        return self.type is bool or (len(self.choices) == 1 and self.default is None)

    def of_flag(self, *, given: bool) -> Any:
        """Return the value for a flag that was given, or not."""
        if self.choices:
            return self.choices[0] if given else self.default
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A result of a routine.

    Parameters
    ----------
    name
        Name of the array where several are stored, of the value in the report.
    shape
        Extents of the result; of a value, empty for a number.
    help
        One line; None for an output that the function stores without being asked for it.
    dtype
        ``"result"`` for the common dtype of the operands, ``"real"`` for the real dtype of its
        precision, or a name.
    kind
        ``"matrix"`` for a result whose location is given: the function takes `out`, one location,
        or a tuple of them where it has several such results; ``"beside"`` for an array that the
        function itself stores beside the first matrix, as `linalg.lu_factor` the pivots;
        ``"value"`` for a small result that the report holds.
    option
        Of a matrix, the option that places it: `OUT` for the first one, the name for the others.
    optional
        A matrix that is stored where its location is given. In the service it is a flag.
    factors
        Kind of the factorisation that `linalg.open` opens again from it and the files beside it.
    when
        Says for the parameters whether there is this output.
    implies
        Parameters that its option sets on the command line where they have their defaults.
    value
        Takes a value from what the function returns.
    """

    name: str
    shape: Shape
    help: str = ""
    dtype: str = "result"
    kind: Literal["matrix", "beside", "value"] = "matrix"
    option: str = ""
    optional: bool = False
    factors: str = ""
    when: Callable[[Given], bool] = always
    implies: Given = field(default_factory=dict, hash=False)
    value: Callable[[Any], Any] = _itself

    @property
    def first(self) -> bool:
        """Whether it is the result that `out` places."""
        return self.option == OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Routine:
    """A routine of linear algebra: from it come its command, process, schemas and plan.

    Parameters
    ----------
    name
        Of the command, the process and the plan: small letters.
    title
        A noun phrase for lists of processes.
    summary
        A sentence for the help of the command and the schema.
    function
        The public function as ``"module:name"``. It takes `leading`, the operands, the parameters
        by keyword, `out` where it stores a matrix, and the keywords of
        `hdgemm.call.keywords.ReportKeywords`, of `DurableKeywords` where it is durable.
    prepare
        The context that prepares a call as ``"module:name"``: it takes the operands, `out`, a
        `hdgemm.call.keywords.Call` and the parameters by keyword, and yields a
        `hdgemm.call.prepared.Prepared`.
    operands, parameters, outputs
        In the order in which they are shown; matrices in the order of `out`.
    aliases
        Further names of its plan.
    leading
        Arguments of the function before the operands.
    durable
        It takes `checkpoint` and `restart`.
    devices
        Accelerators take part.
    in_place
        The command stores the result over A where that is asked for (`overwrite_a`).
    scratch
        Extents of a file that the run keeps beside the result; None without one.
    mpi
        The same function over MPI, ``"module:name"``; "" without one. It takes the operands, `out`,
        some of the parameters, and the keywords of `hdgemm.mpi._run.MpiKeywords`.
    mpi_parameters
        Parameters of that function alone: options that go with `--mpi`.
    row_passes
        Says for the parameters whether its passes over rows run on the workers of a cluster
        (`hdgemm.cluster.row_passes`).
    examples
        Two command lines.
    """

    name: str
    title: str
    summary: str
    function: str
    prepare: str
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    parameters: tuple[Parameter, ...] = ()
    aliases: tuple[str, ...] = ()
    leading: tuple[Any, ...] = ()
    durable: bool = False
    devices: bool = False
    in_place: bool = False
    scratch: Shape | None = None
    mpi: str = ""
    mpi_parameters: tuple[Parameter, ...] = ()
    row_passes: Callable[[Given], bool] = never
    examples: tuple[str, str] = ("", "")

    @property
    def shown(self) -> tuple[Parameter, ...]:
        """Parameters of the command and of the process."""
        return tuple(each for each in self.parameters if not each.python)

    @property
    def defaults(self) -> dict[str, Any]:
        """Default of each parameter of the command and of the process."""
        return {each.name: each.default for each in self.shown}

    @property
    def stores(self) -> bool:
        """Whether it stores a matrix; other routines return values alone."""
        return any(each.first for each in self.outputs)

    @property
    def options(self) -> dict[str, tuple[Output, ...]]:
        """Options that place matrices, `OUT` first; results that exclude each other share one."""
        found: dict[str, tuple[Output, ...]] = {OUT: ()} if self.stores else {}
        for each in self.outputs:
            if each.kind == "matrix":
                option = each.option or each.name
                found[option] = (*found.get(option, ()), each)
        return found

    def present(self, given: Given, *kinds: str) -> list[Output]:
        """Return the outputs of some kinds that these parameters lead to, in order."""
        return [each for each in self.outputs if each.kind in kinds and each.when(given)]

    def first(self, given: Given) -> Output | None:
        """Return the result that `out` places; None for a routine that returns values alone."""
        return next((each for each in self.present(given, "matrix") if each.first), None)

    def places(self, given: Given, first: Any, beside: Callable[[str], Any]) -> dict[str, Any]:
        """Return where a process stores its matrices, by output.

        Parameters
        ----------
        first
            The location of the result.
        beside
            Returns the location of an array beside it by name.
        """
        asked = [each for each in self.arrays(given) if each.kind == "matrix"]
        found = {each.name: beside(each.name) for each in asked}
        result = self.first(given)
        return found if result is None else {result.name: first} | found

    def arrays(self, given: Given) -> list[Output]:
        """Return the arrays that a process stores beside its result; it stores those that are
        optional where their flags are set.
        """
        found = self.present(given, "matrix", "beside")
        asked = [each for each in found if not each.optional or given.get(each.name)]
        return [each for each in asked if not each.first]

    def own(self, given: Given) -> dict[str, Any]:
        """Return the parameters among these, without flags of outputs."""
        names = {each.name for each in self.parameters}
        return {name: value for name, value in given.items() if name in names}

    def extents(self, shapes: Mapping[str, tuple[int, int]], given: Given) -> dict[str, int]:
        """Return the extents of operands by name, with these parameters.

        Raises
        ------
        InputError
            When shapes do not fit together.
        """
        found: dict[str, int] = {}
        of: dict[str, str] = {}
        for operand in self.operands:
            shape, what = shapes[operand.name], operand.name.upper()
            if operand.square and shape[0] != shape[1]:
                raise InputError(f"{what} is {_text(shape)}: {self.name} takes square matrices")
            pairs = zip(operand.stored(given), shape, ("rows", "columns"), strict=True)
            for name, extent, noun in pairs:
                expected = found.setdefault(name, extent)
                if expected != extent:
                    mended = f"; {operand.trans} transposes {what}" if operand.trans else ""
                    raise InputError(
                        f"{of[name]}, and {what} {extent} {noun}: they must be as many{mended}"
                    )
                of.setdefault(name, f"{what} has {extent} {noun}")
        if {"m", "n"} <= found.keys():
            found["k"] = min(found["m"], found["n"])
        return found


def _text(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape))
