"""The results of `bench.cuda` as one picture: Tflop/s beside the ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_COLOURS = {"hdgemm": "#d55e00", "cuBLASXt": "#0072b2", "CuPy": "#009e73"}


def save_picture(results: dict[str, Any], path: Path, title: str) -> None:
    """Draw every timed product as a bar, the ceiling of its extents as a tick; write a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    bars = [
        (f"{who}: {run['label']}", run["tflops"], run.get("ceiling_tflops"), _COLOURS[who])
        for who, section in (
            ("hdgemm", "pipeline"),
            ("hdgemm", "paper_shapes"),
            ("hdgemm", "ladder"),
            ("cuBLASXt", "cublasxt"),
            ("CuPy", "cupy"),
        )
        for run in results.get(section, [])
        if "tflops" in run
    ]
    figure, axes = plt.subplots(figsize=(9.0, 1.2 + 0.26 * max(1, len(bars))), dpi=90)
    for place, (_, tflops, ceiling, colour) in enumerate(bars):
        axes.barh(place, tflops, color=colour)
        if ceiling:
            axes.plot([ceiling, ceiling], [place - 0.4, place + 0.4], color="black", linewidth=2)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("Tflop/s, median (black: cuBLAS on resident data)")
    axes.set_title(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
