"""Every recipe runs as typed in an empty folder, draws its picture, and passes mypy --strict."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from docs import recipe_pages
from tests.docs.pages import RECIPES, ROOT, blocks_of
from tests.docs.test_notebooks import run_notebook

#: Packages that a recipe needs beside hdgemm's own dependencies.
NEEDED = {"dask-xarray-zarr": ("zarr", "dask", "xarray"), "matlab-parquet": ("h5py", "pyarrow")}
#: A user's own settings: packages without types are theirs.
SETTINGS = """[mypy]
strict = True
ignore_missing_imports = True
untyped_calls_exclude = dask
"""


def _stem(page):
    return page.stem


@pytest.mark.campaign  # `make dist` runs them from the wheel
@pytest.mark.parametrize("page", [page for page in RECIPES if blocks_of(page)], ids=_stem)
def test_a_recipe_runs_as_typed(page, tmp_path, run_page):
    for package in NEEDED.get(page.stem, ()):
        pytest.importorskip(package, reason="needs the extra dev")
    text = page.read_text(encoding="utf-8")
    drawn = re.findall(r'(?:savefig\("|--gantt )(\w[\w-]*\.png)', text)
    if drawn:
        pytest.importorskip("matplotlib", reason="needs the extra plot")
    run_page(page, tmp_path)
    assert re.findall(r"\(\.\./pictures/recipes/([^)]+)\)", text) == drawn
    for name in drawn:
        assert (tmp_path / name).stat().st_size > 0
        if recipe_pages.DRAW in os.environ:
            shutil.copy(tmp_path / name, recipe_pages.PICTURES)
        assert (recipe_pages.PICTURES / name).exists(), "run python docs/recipe_pages.py"


@pytest.mark.campaign  # twenty seconds, of which most are NumPy's types
def test_the_recipes_pass_a_strict_type_checker(tmp_path):
    for page in RECIPES:
        program = "\n".join(recipe_pages.python_of(page.read_text(encoding="utf-8")))
        (tmp_path / f"{page.stem.replace('-', '_')}.py").write_text(program, encoding="utf-8")
    settings = tmp_path / "mypy.ini"
    settings.write_text(SETTINGS, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--scripts-are-modules", "--config-file", settings,
               "--cache-dir", tmp_path / "cache", *sorted(tmp_path.glob("*.py"))]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", RECIPES, ids=_stem)
def test_the_notebook_of_a_recipe_has_its_python(page):
    nbformat = pytest.importorskip("nbformat", reason="needs the extra dev")
    text = page.read_text(encoding="utf-8")
    notebook = nbformat.from_dict(recipe_pages.notebook_of(text))
    nbformat.validate(notebook)
    cells = [cell["source"] for cell in notebook.cells if cell.cell_type == "code"]
    assert ["".join(source) for source in cells] == [
        program.rstrip("\n") for program in recipe_pages.python_of(text)
    ]
    shown = "".join("".join(cell["source"]) for cell in notebook.cells)
    assert "<!--" not in shown
    assert "](" not in shown


def test_cells_that_need_a_gpu_do_not_stop_a_notebook():
    page = recipe_pages.RECIPES / "gpu-arrays.md"
    notebook = recipe_pages.notebook_of(page.read_text(encoding="utf-8"))
    tagged = {"".join(cell["source"]) for cell in notebook["cells"] if cell["metadata"]}
    codes = {"".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"}
    assert tagged == {code for code in codes if 'devices="cuda:0"' in code}


@pytest.mark.ci
@pytest.mark.parametrize("page", RECIPES, ids=_stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's libraries
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_notebook_of_a_recipe_runs(page, tmp_path, monkeypatch):
    """But of those that need a server or Slurm."""
    text = page.read_text(encoding="utf-8")
    if not recipe_pages.python_of(text) or "<!-- server -->" in text:
        pytest.skip("no program, or it needs a server")
    for package in (*NEEDED.get(page.stem, ()), "nbformat", "ipykernel", "matplotlib"):
        pytest.importorskip(package, reason="needs the extra dev")
    run_notebook(recipe_pages.notebook_of(text), tmp_path, monkeypatch)


def test_every_recipe_is_listed_and_in_the_navigation():
    index = (recipe_pages.RECIPES / "index.md").read_text(encoding="utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in RECIPES:
        assert f"recipes/{page.name}" in navigation
        assert page.name == "index.md" or f"({page.name})" in index


@pytest.mark.parametrize(
    "term",
    ["pca", "svd", "similarity", "parquet", "slurm", "jupyter", "uninstall", "cite"],
)
def test_a_term_that_a_reader_searches_is_in_the_documents(term):
    pages = (ROOT / "docs").rglob("*.md")
    words = re.compile(rf"\b{term}\b", re.IGNORECASE)
    assert any(words.search(page.read_text(encoding="utf-8")) for page in pages)
