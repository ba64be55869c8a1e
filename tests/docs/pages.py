"""The programs in the documents: fenced blocks of sh and python, and how a page of them is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
#: Pages whose Python is one program from the first block to the last, as in their notebooks.
RECIPES: Final = tuple(page for page in PAGES if page.parent.name == "recipes")
#: The page with the program that makes the example matrices of the other pages.
EXAMPLES: Final = ROOT / "docs/how-to/files.md"
#: Languages that a block may have; blocks of `RUN` are programs.
RUN: Final = ("sh", "python")
SHOWN: Final = ("text", "json", "nginx", "yaml")

#: A comment before a block says that it is not run and why, or that it starts a server.
_BLOCK: Final = re.compile(
    r"(?:<!-- (?P<mark>not run: [^\n]+|server) -->\n+)?"
    r"^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its first line in the page, language, text and mark."""

    line: int
    language: str
    text: str
    mark: str

    @property
    def runs(self) -> bool:
        """Whether the block is a program that can run here."""
        return self.language in RUN and not self.mark.startswith("not run")


def name_of(page: Path) -> str:
    """Return the name of a page, relative to the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            text.count("\n", 0, found.start("text")) + 1,
            found["language"],
            found["text"],
            found["mark"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def programs_of(page: Path) -> list[Block]:
    """Return the programs of a page.

    Python without an import, and further Python of a recipe, continues the program before it.
    """
    programs: list[Block] = []
    for block in blocks_of(page):
        if not block.runs:
            continue
        before = [i for i, program in enumerate(programs) if program.language == "python"]
        begins = re.search(r"(?m)^(import|from) ", block.text) and not (before and page in RECIPES)
        if block.language == "python" and not begins:
            at = before[-1]
            programs[at] = replace(programs[at], text=programs[at].text + block.text)
        else:
            programs.append(block)
    return programs


#: Runs the programs of one process one after the other, each with names of its own.
_PROGRAMS: Final = """python - <<'END_OF_PROGRAMS'
for name, text in {programs!r}:
    exec(compile(text, name, "exec"), {{"__name__": "__main__"}})
END_OF_PROGRAMS"""


def script_of(page: Path, port: int) -> str:
    """Return one shell script that does what a reader of the page types, in the same order.

    Servers listen on `port`.
    """
    lines = ["set -eo pipefail", "trap 'kill $SERVER 2>/dev/null && wait $SERVER || true' EXIT"]
    for language, group in groupby(programs_of(page), key=lambda block: block.language):
        blocks = list(group)
        if language == "python":
            programs = [(f"{name_of(page)}, line {one.line}", one.text) for one in blocks]
            lines.append(_PROGRAMS.format(programs=programs))
            continue
        for block in blocks:
            lines.append(f"echo '--- {name_of(page)}, line {block.line}' >&2")
            if block.mark == "server":
                lines.append(f"(\n{block.text}) &\nSERVER=$!\nwait-for-server 8000")
            else:
                lines.append(block.text)
    script = "\n".join(lines).replace("hdgemm serve ", "hdgemm serve --port 8000 ")
    return script.replace("8000", str(port))
