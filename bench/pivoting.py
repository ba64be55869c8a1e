"""Growth and backward error of tournament pivoting against partial pivoting.

python -m bench.pivoting --save
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.gallery import GALLERY
from bench.harness import ROOT, environment, save
from hdgemm.fortran import getrf, laswp, trsm
from hdgemm.tasks.tournament import factor_tournament

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

PAGE: Final = ROOT / "docs" / "explanation" / "pivoting.md"
BEGIN: Final = "<!-- measured: written by python -m bench.pivoting --save -->"
END: Final = "<!-- /measured -->"


def figures(a: NDArray[np.float64], how: str, panel: int, leaf: int) -> dict[str, float]:
    """Return growth, ||P·A - L·U|| and ||b - A·x|| in LAPACK's units, and the largest |l|.

    Norms are 1-norms, units n·eps·||A|| and n·eps·||A||·||x|| with eps = 2**-53.
    """
    n, scale = len(a), np.exp2(-np.frexp(np.abs(a).max())[1])
    lu = np.array(a, order="F")
    pivots, zero = getrf(lu) if how == "partial" else factor_tournament(lu, panel, leaf)
    lower, upper = np.tril(lu, -1) + np.eye(n), np.triu(lu) * scale
    rows = np.array(a * scale, order="F")
    laswp(rows, pivots)
    unit = n * 2.0**-53 * np.abs(rows).sum(axis=0).max()
    found = {
        "growth": float(np.abs(upper).max() / np.abs(rows).max()),
        "residual": float(np.abs(rows - lower @ upper).sum(axis=0).max() / unit),
        "largest_l": float(np.abs(np.tril(lu, -1)).max()),
    }
    if not zero:
        b = np.asfortranarray(np.random.default_rng(4).standard_normal((n, 1)))
        x = b.copy(order="F")
        trsm(np.asfortranarray(lower), x, unit=True)
        trsm(np.asfortranarray(upper), x, lower=False)
        found["solution"] = float(np.abs(b - rows @ x).sum() / (unit * np.abs(x).sum()))
    return found


def compare(n: int, panel: int, leaf: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return the figures of both kinds of pivoting for each matrix of the gallery."""
    return {
        name: {how: figures(make(n), how, panel, leaf) for how in ("partial", "tournament")}
        for name, make in GALLERY.items()
    }


def table(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Return the rows of a Markdown table; permutations, which have no error, are left out."""
    lines = [
        (
            "| matrix | growth, partial | tourn. | ‖PA−LU‖, partial | tourn. "
            r"| ‖b−Ax‖, partial | tourn. | largest \|l\| |"
            "\n|---|---|---|---|---|---|---|---|"
        ),
    ]
    for name, found in results.items():
        partial, other = found["partial"], found["tournament"]
        if partial["largest_l"] == other["largest_l"] == 0 == partial["residual"]:
            continue
        cells = [name]
        for figure in ("growth", "residual", "solution"):
            cells += [_number(each.get(figure)) for each in (partial, other)]
        lines.append(f"| {' | '.join([*cells, _number(other['largest_l'])])} |")
    return lines


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def write_page(lines: list[str]) -> None:
    """Replace the table between the marks of the page."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END)[1]}")
    print(f"written: {PAGE.relative_to(ROOT)}")


def main() -> None:
    """Print the table; with --save also write it to bench/results and to the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=512)
    parser.add_argument("--panel", type=int, default=32)
    parser.add_argument("--leaf", type=int, default=64)
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args()
    where = environment()
    results: dict[str, Any] = compare(chosen.n, chosen.panel, chosen.leaf)
    lines = table(results)
    print("\n".join(lines))
    if chosen.save:
        sizes = {"n": chosen.n, "panel": chosen.panel, "leaf": chosen.leaf}
        save("pivoting", sizes | {"matrices": results}, where)
        write_page(lines)


if __name__ == "__main__":
    main()
