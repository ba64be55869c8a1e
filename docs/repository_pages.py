"""Pages made from files outside `docs/`: notebooks, changelog, contributing, security, citation.

A hook of the document site.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
#: Pages of text, by the file that they come from.
TEXTS: Final = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
CITATION: Final = "CITATION.cff"
_LINK: Final = re.compile(r"\]\(([^)#]+)")


def repository_files() -> Iterator[tuple[str, str, str | bytes]]:
    """Yield path in the site, source in the repository, and content of every page and picture."""
    for source, path in TEXTS.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        yield path, source, _LINK.sub(lambda link: f"]({_in_site(link[1])}", text)
    yield "citation.md", CITATION, citation_page((ROOT / CITATION).read_text(encoding="utf-8"))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text = notebook.read_text(encoding="utf-8")
        source = f"notebooks/{notebook.name}"
        page, pictures = notebook_page(json.loads(text), notebook.stem)
        yield f"notebooks/{notebook.stem}.md", source, page
        yield source, source, text
        for name, picture in pictures.items():
            yield f"notebooks/{name}", source, picture


def citation_page(entry: str) -> str:
    """Return the page of a citation file: what to cite, and the file itself."""
    _, _, rest = entry.partition("message: >-\n")
    lines = itertools.takewhile(lambda line: line.startswith("  "), rest.splitlines())
    words = " ".join(line.strip() for line in lines)
    return (
        f"# Cite\n\n{words}\n\n`{CITATION}` in the repository, which GitHub and Zotero convert to"
        f" BibTeX:\n\n```yaml\n{entry}```\n"
    )


def notebook_page(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook with its outputs as a page, and the pictures of the page by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else _fenced("python", text))
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
            elif shown := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(_fenced("text", shown))
    parts.append(f"[This page as a Jupyter notebook]({stem}.ipynb)")
    return "\n\n".join(parts) + "\n", pictures


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; their edit links lead to the sources."""
    from mkdocs.structure.files import File

    for path, source, content in repository_files():
        file = File.generated(config, path, content=content)
        file.edit_uri = f"../{source}"
        files.append(file)
    return files


def _in_site(target: str) -> str:
    """Return where a link of a top-level file leads within the site."""
    return TEXTS.get(target, target.removeprefix("docs/"))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
