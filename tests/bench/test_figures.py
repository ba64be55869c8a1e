"""The tables of measured figures are written from the results, and from nothing else."""

import shutil

from bench import figure_rows, figures


def test_the_tables_are_written_again(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "docs/measured.md"):
        shutil.copy(figures.ROOT / page, tmp_path / page)
    monkeypatch.setattr(figures, "ROOT", tmp_path)

    figures.main()
    first = (tmp_path / "docs/measured.md").read_text(encoding="utf-8")
    figures.main()

    assert (tmp_path / "docs/measured.md").read_text(encoding="utf-8") == first
    assert "| files, n = 16384" in first
    assert "--data" not in first
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    table = readme.split(figures.BEGIN)[1].split(figures.END)[0]
    assert len(table.strip().splitlines()) == 2 + len(figures.HEADLINES)


def test_factorisations_are_rows_of_ratios():
    turn = {"status": "done", "seconds": 10.0, "stages": {"mult1": {"seconds": 18.0}}}
    result = {
        "environment": {"cores": 2},
        "n": 16384,
        "host_memory": 1_500_000_000,
        "lu_factor": {
            "of_gemm": {"median": 0.85},
            "of_scipy": {"median": 1.02},
            "hdgemm": [turn, turn | {"status": "timeout"}],
        },
    }
    (row,) = figure_rows.linalg(result)
    assert row == "| `lu_factor`, files, n = 16384, 1500 MB | 1.020 | 0.850 | 90% |"


def test_a_headline_has_the_heads_of_the_columns_after_its_figures():
    section = figures.SECTIONS["linalg"]
    assert figures._headline("| `qr` | 1.738 | 0.760 | 92% |", section) == (
        "| `qr` | 1.738 of SciPy in RAM, 0.760 of DGEMM in RAM, 92% of the cores' time in kernels |"
    )


def test_a_row_that_was_measured_again_is_shown_once():
    page = "\n".join(figures.measured())
    assert page.count("| `cholesky`, files, n = 16384, 1500 MB, column-major |") == 1
    assert page.count("| zarr files,") == 1


def test_the_newest_row_of_a_measurement_is_shown(monkeypatch):
    group = figures.SAME_ROWS[0]
    section = figures.Section("products", lambda result: [f"| files | {result['speed']} |"])
    monkeypatch.setattr(figures, "SECTIONS", dict.fromkeys(group, section))
    found = {
        name: {"environment": {"when": f"2026-11-2{day}"}, "speed": day}
        for day, name in zip((3, 5, 4), group, strict=True)
    }
    shown = [row for name in group for row in figures._present_rows(name, found)]
    assert shown == ["| files | 5 |"]


def test_the_results_with_the_same_rows_are_committed():
    assert all(figures.load(name) for group in figures.SAME_ROWS for name in group)
