"""Descriptions of computations on tall matrices: singular values, covariance, regression."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hdgemm.routines.description import OUT, Operand, Output, Parameter, Routine, always, extents

if TYPE_CHECKING:
    from hdgemm.routines.description import Extents, Given, Shape

_A: Final = Operand("a", "m", "n")
_SQUARE: Final = Operand("a", "n", "n")
#: Pairs where none are asked for, as SciPy's.
_PAIRS: Final = 6
_ROWVAR: Final = Parameter(name="rowvar", help="Rows are variables, columns are observations.")


def _variables(sizes: Extents, given: Given) -> tuple[int, int]:
    order = sizes["m" if given.get("rowvar") else "n"]
    return order, order


def _coefficients(sizes: Extents, given: Given) -> tuple[int, int]:
    return sizes["n"], sizes["p"] * len(given.get("alphas") or (0.0,))


def _with_k(*names: str) -> Shape:
    """Return the shape with these extents, k the number of pairs that is asked for."""
    return lambda sizes, given: tuple(
        int(given.get("k", _PAIRS)) if name == "k" else sizes[name] for name in names
    )


def _iteration(pairs: str) -> tuple[Parameter, ...]:
    """Return the parameters of a block Krylov iteration."""
    return (
        Parameter(name="k", help=f"How many {pairs}.", type=int, default=_PAIRS, least=1),
        Parameter(
            name="tol",
            help="Residual at which a pair has converged, relative; 0: working precision.",
            type=float,
            default=0.0,
            least=0.0,
            most=1.0,
        ),
        Parameter(name="maxiter", help="Reads of A at most.", type=int, default=None, least=1),
    )


def _value(name: str, attribute: str) -> Output:
    """Return a value of a fit, which the report holds."""
    return Output(
        name=name, shape=extents("p"), dtype="real", kind="value", value=attrgetter(attribute)
    )


ROUTINES: Final = (
    Routine(
        name="svdvals",
        title="Singular values",
        summary="Compute the singular values of a tall or wide matrix, in one pass.",
        function="hdgemm.linalg.svd:svdvals",
        prepare="hdgemm.linalg.svd:prepare_values",
        operands=(_A,),
        parameters=(
            Parameter(
                name="method",
                help="By TSQR, or from A^H·A: faster and less exact.",
                type=str,
                default="tsqr",
                choices=("tsqr", "gram"),
            ),
        ),
        outputs=(
            Output(
                name="s", help="Where the values go.", shape=extents("k"), dtype="real", option=OUT
            ),
        ),
        durable=True,
        devices=True,
        row_passes=always,
        examples=(
            "hdgemm svdvals T.npy --out s.npy",
            "hdgemm svdvals T.npy --out s.npy --method gram --host-memory 2GB",
        ),
    ),
    Routine(
        name="svd",
        title="Singular value decomposition U·diag(s)·Vh",
        summary="Decompose a tall or wide matrix: A = U·diag(s)·Vh.",
        function="hdgemm.linalg.svd:svd",
        prepare="hdgemm.linalg.svd:prepare",
        operands=(_A,),
        outputs=(
            Output(name="u", help="Where U goes.", shape=extents("m", "k"), option=OUT),
            Output(name="s", help="Where the values go.", shape=extents("k"), dtype="real"),
            Output(name="vh", help="Where Vh goes.", shape=extents("k", "n")),
        ),
        durable=True,
        devices=True,
        row_passes=always,
        examples=(
            "hdgemm svd T.npy --out U.npy --s s.npy --vh Vh.npy",
            "hdgemm svd T.npy --out U.npy --s s.npy --vh Vh.npy --dry-run",
        ),
    ),
    Routine(
        name="svds",
        title="Leading singular values and vectors",
        summary="Compute the k largest singular values and their vectors, by block Krylov.",
        function="hdgemm.linalg.krylov:svds",
        prepare="hdgemm.linalg.krylov:prepare_svds",
        operands=(_A,),
        parameters=_iteration("singular values"),
        outputs=(
            Output(name="u", help="Where U goes.", shape=_with_k("m", "k"), option=OUT),
            Output(name="s", help="Where the values go.", shape=_with_k("k"), dtype="real"),
            Output(name="vh", help="Where Vh goes.", shape=_with_k("k", "n")),
        ),
        durable=True,
        devices=True,
        row_passes=always,
        examples=(
            "hdgemm svds T.npy --out U.npy --s s.npy --vh Vh.npy --k 3",
            "hdgemm svds T.npy --out U.npy --s s.npy --vh Vh.npy --k 3 --tol 1e-6",
        ),
    ),
    Routine(
        name="eigsh",
        title="Leading eigenvalues and eigenvectors",
        summary="Compute k eigenpairs of a symmetric or Hermitian matrix, by block Krylov.",
        function="hdgemm.linalg.krylov:eigsh",
        prepare="hdgemm.linalg.krylov:prepare_eigsh",
        operands=(_SQUARE,),
        parameters=(
            *_iteration("pairs"),
            Parameter(
                name="which",
                help="Largest by magnitude, largest, smallest, or from both ends.",
                type=str,
                default="LM",
                choices=("LM", "LA", "SA", "BE"),
            ),
        ),
        outputs=(
            Output(
                name="w", help="Where the values go.", shape=_with_k("k"), dtype="real", option=OUT
            ),
            Output(name="v", help="Where the vectors go.", shape=_with_k("n", "k")),
        ),
        durable=True,
        devices=True,
        examples=(
            "hdgemm eigsh S.npy --out w.npy --v V.npy --k 3",
            "hdgemm eigsh S.npy --out w.npy --v V.npy --k 3 --which LA",
        ),
    ),
    Routine(
        name="pca",
        title="Principal components",
        summary="Compute the k leading principal components of samples, and their scores.",
        function="hdgemm.decomposition:pca",
        prepare="hdgemm.linalg.components:prepare",
        operands=(_A,),
        parameters=(
            Parameter(name="k", help="How many components.", type=int, default=_PAIRS, least=1),
            Parameter(name="whiten", help="Divide scores by their standard deviations."),
            Parameter(name="standardize", help="Divide features by their standard deviations."),
            Parameter(
                name="svd_solver",
                help="One pass and a triangle of all columns, or several passes.",
                type=str,
                default="auto",
                choices=("auto", "full", "krylov"),
            ),
        ),
        outputs=(
            Output(name="scores", help="Where the scores go.", shape=_with_k("m", "k"), option=OUT),
            Output(
                name="components",
                help="Where the components go, one in each row.",
                shape=_with_k("k", "n"),
                optional=True,
            ),
            Output(
                name="mean",
                help="Where the mean of each column goes.",
                shape=extents("n"),
                optional=True,
            ),
            *(
                Output(
                    name=name,
                    shape=_with_k("k"),
                    dtype="real",
                    kind="value",
                    value=attrgetter(name),
                )
                for name in ("explained_variance", "explained_variance_ratio", "singular_values")
            ),
        ),
        durable=True,
        devices=True,
        row_passes=always,
        examples=(
            "hdgemm pca T.npy --out scores.npy --components V.npy --k 10",
            "hdgemm pca T.npy --out scores.npy --k 2 --standardize --host-memory 2GB",
        ),
    ),
    Routine(
        name="cov",
        title="Covariance matrix",
        summary="Compute the covariance matrix of columns, in one pass.",
        function="hdgemm.linalg.covariance:cov",
        prepare="hdgemm.linalg.covariance:prepare",
        operands=(_A,),
        parameters=(
            _ROWVAR,
            Parameter(
                name="ddof",
                help="Divide by the observations less this number.",
                type=int,
                default=1,
                least=0,
            ),
        ),
        outputs=(Output(name="c", help="Where C goes.", shape=_variables, option=OUT),),
        durable=True,
        devices=True,
        row_passes=always,
        examples=(
            "hdgemm cov T.npy --out cov.npy",
            "hdgemm cov T.npy --out cov.npy --ddof 0 --host-memory 2GB",
        ),
    ),
    Routine(
        name="corrcoef",
        title="Correlation coefficients",
        summary="Compute the correlation coefficients of columns, in one pass.",
        function="hdgemm.linalg.covariance:corrcoef",
        prepare="hdgemm.linalg.covariance:prepare_correlation",
        operands=(_A,),
        parameters=(_ROWVAR,),
        outputs=(Output(name="c", help="Where C goes.", shape=_variables, option=OUT),),
        durable=True,
        devices=True,
        row_passes=always,
        examples=(
            "hdgemm corrcoef T.npy --out corr.npy",
            "hdgemm corrcoef T.npy --out corr.npy --dry-run",
        ),
    ),
    Routine(
        name="norm",
        title="Norm of a matrix",
        summary="Compute a norm of a matrix, in one pass.",
        function="hdgemm.linalg.norm:norm",
        prepare="hdgemm.linalg.norm:prepare",
        operands=(_A,),
        parameters=(
            Parameter(
                name="ord",
                help="Frobenius; largest element; sum of singular values; p = 1, 2 or inf.",
                type=str,
                default="fro",
                choices=("fro", "max", "nuc", "1", "-1", "2", "-2", "inf", "-inf"),
            ),
        ),
        outputs=(Output(name="norm", shape=extents(), dtype="real", kind="value"),),
        row_passes=always,
        examples=("hdgemm norm T.npy", "hdgemm norm T.npy --ord 1"),
    ),
    Routine(
        name="pinv",
        title="Pseudoinverse",
        summary="Compute the pseudoinverse of a tall or wide matrix.",
        function="hdgemm.linalg.pinv:pinv",
        prepare="hdgemm.linalg.pinv:prepare",
        operands=(_A,),
        outputs=(Output(name="x", help="Where X goes.", shape=extents("n", "m"), option=OUT),),
        durable=True,
        devices=True,
        examples=(
            "hdgemm pinv T.npy --out X.npy",
            "hdgemm pinv T.npy --out X.npy --host-memory 2GB",
        ),
    ),
    Routine(
        name="ridge",
        title="Ridge regression for several penalties",
        summary="Minimise ||B − A·X||² + alpha·||X||² for each alpha, in one pass.",
        function="hdgemm.linalg.ridge:ridge",
        prepare="hdgemm.linalg.ridge:prepare",
        operands=(_A, Operand("b", "m", "p")),
        parameters=(
            Parameter(
                name="alphas", help="The penalties.", type=list[float], default=[0.0], least=0
            ),
            Parameter(name="intercept", help="Fit a constant term, too."),
        ),
        outputs=(
            Output(
                name="x",
                help="Where the columns of X for each alpha go.",
                shape=_coefficients,
                option=OUT,
            ),
            _value("constant", "intercept"),
            _value("residues", "residues"),
            _value("degrees_of_freedom", "degrees_of_freedom"),
            _value("r2", "r2"),
        ),
        durable=True,
        devices=True,
        row_passes=always,
        examples=(
            "hdgemm ridge T.npy Y.npy --out W.npy --alphas 1 --alphas 10",
            "hdgemm ridge T.npy Y.npy --out W.npy --intercept --checkpoint",
        ),
    ),
)
