"""Registers the toy in each process that has this folder in its path."""

from hdgemm.routines.description import OUT, Operand, Output, Parameter, Routine, extents
from hdgemm.routines.registry import register

register(
    Routine(
        name="shift",
        title="Shifted sum",
        summary="Add two matrices and numbers.",
        function="tests.routines.toy:shift",
        prepare="tests.routines.toy:prepare",
        operands=(Operand("a", "m", "n"), Operand("w", "m", "n")),
        parameters=(
            Parameter(name="scale", help="Factor of the sum.", type=float, default=1.0, least=0.0),
            Parameter(name="shifts", help="Numbers to add.", type=list[float], default=[]),
            Parameter(name="side", help="Which row.", type=str, default="left",
                      choices=("left", "right")),
        ),
        outputs=(
            Output(name="total", help="Where the sum goes.", shape=extents("m", "n"), option=OUT),
            Output(name="rest", help="Where the difference goes.", shape=extents("m", "n"),
                   optional=True),
            Output(name="largest", shape=extents(), kind="value",
                   value=lambda found: found["largest"]),
            Output(name="heads", shape=extents("n"), kind="value",
                   value=lambda found: found["heads"]),
        ),
        examples=("hdgemm shift A.npy B.npy --out C.npy", "hdgemm shift A.npy B.npy --out D.npy"),
    )
)  # fmt: skip
