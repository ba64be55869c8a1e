"""Changelog, contributing, security, citation and notebooks are pages with valid links."""

import base64
import re

import pytest

from docs.repository_pages import CITATION, citation_page, notebook_page, repository_files
from tests.docs.pages import ROOT

FILES = {path: content for path, _, content in repository_files()}
NAMES = [path for path in FILES if path.endswith(".md")]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_in_the_navigation_and_its_links_lead_somewhere(name):
    assert f": {name}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert FILES[name].startswith("# ")
    folder, _, _ = name.rpartition("/")
    for link in re.findall(r"\]\(([^)#]+)", FILES[name]):
        path = f"{folder}/{link}" if folder else link
        assert "://" in link or path in FILES or (ROOT / "docs" / path).exists(), link


def test_every_notebook_is_a_page_that_offers_the_file():
    notebooks = [path.stem for path in (ROOT / "notebooks").glob("*.ipynb")]
    for stem in notebooks:
        assert f"notebooks/{stem}.md" in NAMES
        assert FILES[f"notebooks/{stem}.ipynb"]


def test_code_outputs_and_pictures_of_a_notebook_are_shown():
    picture = base64.b64encode(b"a picture").decode()
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": ["print(1)"],
            "outputs": [
                {"text": ["1\n"]},
                {"data": {"text/plain": ["<Image>"], "image/png": picture}},
            ],
        },
    ]
    page, pictures = notebook_page({"cells": cells}, "one")
    assert pictures == {"one-1.png": b"a picture"}
    assert page.startswith("# Title\ntext\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n![")
    assert "(one-1.png)" in page
    assert "<Image>" not in page


def test_the_citation_page_has_the_message_and_the_whole_entry():
    entry = (ROOT / CITATION).read_text(encoding="utf-8")
    page = citation_page(entry)
    assert entry in page
    assert "please cite it" in page.partition("```")[0]
