"""Put the repository's address into a release: Project-URLs, and the README's links as addresses.

python packaging/addresses.py https://HOST/OWNER/NAME TAG

The package index shows the README alone: a relative link or picture leads nowhere there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: A link or a picture, whose target is no address and no heading of the same page.
_RELATIVE: Final = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")


def with_addresses(readme: str, repository: str, tag: str) -> str:
    """Return a README whose links lead to the files of a tag."""

    def absolute(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        view = "raw" if picture else "blob"
        return f"{picture}[{text}]({repository}/{view}/{tag}/{target})"

    return _RELATIVE.sub(absolute, readme)


def project_urls(repository: str) -> str:
    """Return the table of pyproject.toml."""
    urls = {
        "Source": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }
    return "\n[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items())


def main() -> None:
    """Change README.md and pyproject.toml."""
    repository, tag = sys.argv[1:]
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    text = with_addresses(readme.read_text(encoding="utf-8"), repository, tag)
    readme.write_text(text, encoding="utf-8")
    with project.open("a", encoding="utf-8") as stream:
        stream.write(project_urls(repository))


if __name__ == "__main__":
    main()
