"""Every command and program of the documents is run, as a reader would type it."""

import re
import shlex
import subprocess
import sys

import pytest
import typer

import hdgemm
from hdgemm.cli.app import app
from tests.docs.pages import (
    EXAMPLES,
    PAGES,
    RECIPES,
    ROOT,
    RUN,
    SHOWN,
    blocks_of,
    name_of,
    programs_of,
)

#: Pages that have programs; test_recipes.py runs the recipes.
PROGRAMS = [
    page for page in PAGES if page not in RECIPES and any(block.runs for block in blocks_of(page))
]
#: Pages of more than 3 s of processor time are left to continuous integration.
SLOW = frozenset(
    {
        "docs/how-to/linpack.md",
        "docs/how-to/mpi.md",
        "docs/how-to/service.md",
        "docs/reference/cli.md",
        "docs/reference/http.md",
        "docs/tutorial.md",
    }
)
#: Orders of matrices that a page shows, and what the test takes in their place.
SMALLER = {name: {"2000": "400"} for name in ("docs/index.md", "docs/tutorial.md")}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.ci if name_of(page) in SLOW else ())
        for page in PROGRAMS
    ],
    ids=name_of,
)
def test_the_programs_of_a_page_run(page, sandbox, run_page):
    run_page(page, sandbox, SMALLER.get(name_of(page), {}))


@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_a_page_makes_the_matrices_of_its_programs_or_says_where_they_are_made(page):
    programs = "\n".join(program.text for program in programs_of(page))
    taken = re.search(r"\b[ABCSTY]\.npy", programs)
    made = re.search(r"np\.save\(|hdgemm random", programs)
    link = f"{EXAMPLES.name}#example-matrices"
    assert not taken or made or link in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_a_page_is_run_or_says_why_not(page):
    for block in blocks_of(page):
        assert block.language in (*RUN, *SHOWN), f"{name_of(page)}, line {block.line}"
        assert block.mark == "" or block.language in RUN, f"{name_of(page)}, line {block.line}"
    fences = re.findall(r"(?m)^\s*```", page.read_text(encoding="utf-8"))
    assert len(fences) == 2 * len(blocks_of(page)), "a block that is indented or not closed"


def test_the_plan_that_the_page_of_errors_shows_is_refused():
    typed, shown = blocks_of(ROOT / "docs/reference/errors.md")[-2:]
    words = shlex.split(typed.text.partition(";")[0])[1:]
    command = [sys.executable, "-m", "hdgemm", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.text == f"{done.stderr}{done.returncode}\n"


def test_the_product_that_the_page_of_memory_shows_is_refused(capsys):
    blocks = blocks_of(ROOT / "docs/how-to/memory.md")
    at = next(i for i, one in enumerate(blocks) if one.language == "text")
    exec(blocks[at - 1].text, {})
    assert capsys.readouterr().out == blocks[at].text


def _options(command):
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_names_in_the_text_exist(page):
    root = typer.main.get_command(app)
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"(?<![`\w])`(hdgemm (?:[^`]+))`", text):
        command = root
        for word in line.split()[1:]:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
            elif word.startswith("--"):
                known = _options(command) | {"--help"}
                assert word.split("=")[0].rstrip(",.") in known, f"{line}: {word}"
        assert command is not root or line.split()[1].startswith("-") or "COMMAND" in line, line
    for name in re.findall(r"`hdgemm\.([a-z_]+)\b[^`/]*`", text):
        assert (
            hasattr(hdgemm, name)
            or (ROOT / "hdgemm" / name).exists()
            or (ROOT / "hdgemm" / f"{name}.py").exists()
        ), f"hdgemm.{name}"
