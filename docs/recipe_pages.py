"""Notebooks and pictures of the recipes, both made from the pages: a hook of the document site.

`python docs/recipe_pages.py` runs each recipe, as its test does, and stores its pictures.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parent
RECIPES: Final = DOCS / "recipes"
PICTURES: Final = DOCS / "pictures/recipes"
#: Environment variable with which the test of the recipes stores their pictures.
DRAW: Final = "HDGEMM_DRAW_RECIPES"

#: A comment or a picture of a page, which a notebook does without: it draws the picture itself.
_LEFT_OUT: Final = re.compile(r"^(<!-- .* -->|!\[.*\]\(.*\))\n", re.MULTILINE)
#: A block of Python, which becomes a cell.
_PYTHON: Final = re.compile(r"^```python\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
#: A block of Python that needs what not every machine has.
_NOT_RUN: Final = re.compile(
    r"^<!-- not run: [^\n]* -->\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
#: A link to another page.
_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")


def python_of(markdown: str) -> list[str]:
    """Return the blocks of Python of a page."""
    return _PYTHON.findall(markdown)


def notebook_of(markdown: str) -> dict[str, Any]:
    """Return a page as a Jupyter notebook: each block of Python is a cell, links are plain text."""
    needing = {found[1] for found in _NOT_RUN.finditer(markdown)}
    parts = _PYTHON.split(_LINK.sub(r"\1", _LEFT_OUT.sub("", markdown)))
    cells = [_cell(i, "code" if i % 2 else "markdown", part) for i, part in enumerate(parts)]
    for cell, part in zip(cells, parts, strict=True):
        if part in needing:  # "Run all" goes on after it where there is no GPU
            cell["metadata"] = {"tags": ["raises-exception"]}
    return {
        "cells": [cell for cell in cells if cell["source"]],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(index: int, kind: str, text: str) -> dict[str, Any]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    lines = text.strip().splitlines(keepends=True)
    return {"cell_type": kind, "id": f"cell{index}", "metadata": {}, "source": lines} | code


def on_files(files: Any, config: Any) -> Any:
    """Add a notebook for each recipe that has Python."""
    from mkdocs.structure.files import File

    for page in sorted(RECIPES.glob("*.md")):
        markdown = page.read_text(encoding="utf-8")
        if python_of(markdown):
            content = json.dumps(notebook_of(markdown), indent=1, ensure_ascii=False)
            files.append(File.generated(config, f"recipes/{page.stem}.ipynb", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the link to the notebook at the end of a recipe."""
    path = Path(page.file.src_uri)
    if path.parent.name != "recipes" or not python_of(markdown):
        return markdown
    return f"{markdown}\n[This page as a Jupyter notebook]({path.stem}.ipynb)\n"


def main() -> None:
    """Draw the pictures of all recipes."""
    PICTURES.mkdir(exist_ok=True)
    tests = ("-m", "campaign", "-k", "runs_as_typed", "tests/docs/test_recipes.py")
    command = [sys.executable, "-m", "pytest", *tests]
    subprocess.run(command, cwd=DOCS.parent, env={**os.environ, DRAW: "1"}, check=True)


if __name__ == "__main__":
    main()
