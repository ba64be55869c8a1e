"""The document site builds without a broken link; links and figures of the pages are right."""

import importlib
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

import hdgemm
from bench import figures
from docs.site_hooks import (
    command_reference,
    description,
    documented_path,
    name_page,
    on_page_content,
    on_post_template,
    public_names,
    shown_commands,
)

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(ROOT.glob("*.md"))
#: Links to other hosts, of all pages.
ADDRESSES = sorted({
    address
    for page in (*PAGES, *(ROOT / "docs").rglob("*.md"))
    for address in re.findall(r"\]\((https?://[^)#\s]+)", page.read_text(encoding="utf-8"))
})  # fmt: skip


@pytest.mark.campaign  # continuous integration runs it by itself
def test_the_site_builds_in_strict_mode(tmp_path):
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path / "site"],
        check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    commands = (tmp_path / "site/reference/cli/index.html").read_text(encoding="utf-8")
    assert 'href="../commands/multiply/"' in commands
    assert f"hdgemm {hdgemm.__version__}" in commands
    multiply = (tmp_path / "site/reference/commands/multiply/index.html").read_text("utf-8")
    assert "--host-memory" in multiply
    assert "ADDRESS|FILE|local:N</td>" in multiply
    names = tmp_path / "site/reference/names"
    for name in ("hdgemm.matmul", "hdgemm.linalg.svd", "hdgemm.linalg.RidgeFit"):
        page = (names / name / "index.html").read_text(encoding="utf-8")
        assert f'id="{documented_path(name)}"' in page
        assert 'doc-symbol-module"' not in page
        assert ('href="../../library/#calls"' in page) == ("Keywords of every call" in page)
        assert not re.search(r'<(script|link)[^>]+(src|href)="https?://', page), "no other hosts"
        assert f"<title>{name} - hdgemm</title>" in page
        assert page.count("<h1") == 1
        assert "Unpack" not in page
    errors = (names / "hdgemm.errors/index.html").read_text(encoding="utf-8")
    assert 'id="hdgemm.errors.InputIndexError"' in errors
    assert not re.search(r'id="hdgemm\.errors\.([a-z]|DoesNotFitError\.within)', errors)
    session = (names / "hdgemm.Session/index.html").read_text(encoding="utf-8")
    assert re.findall(r'id="hdgemm\.Session\.(\w+)"', session) == ["close"]


def test_a_page_of_a_name_leaves_out_what_the_package_calls_itself():
    for name in public_names():
        hidden = re.findall(r"!\^(\w+)\$", name_page(name))
        room, _, last = name.rpartition(".")
        value = getattr(importlib.import_module(room), last)
        assert all(hasattr(value, each) for each in hidden) or name == "hdgemm.errors"
        assert ("members:" in name_page(name)) == (name == "hdgemm.errors")
    assert "'!^check_consumer$'" in name_page("hdgemm.Session")
    assert "'!^within$'" in name_page("hdgemm.errors")
    assert "nearest_name" not in name_page("hdgemm.errors")


def test_a_page_is_described_by_its_first_paragraph_unless_that_says_little():
    page = '# Title\n\n<!-- mark -->\nThe [first](a.md) paragraph, `code="1"`,\n'
    page += "of two lines that go on and on.\n\nMore."
    shown = "The first paragraph, code=&quot;1&quot;, of two lines that go on and on."
    assert description(page, None, "Title") == shown
    assert description("# Title\n\nIn a clone:\n", None, "Title").startswith("Title: dense linear")
    assert description("", "Given.", "Title") == "Given."


@pytest.mark.parametrize(("address", "home"), [(None, "/"), ("https://a.org/h/", "/h/")])
def test_the_page_of_a_wrong_address_says_where_to_look(address, home):
    html = "<title>hdgemm</title><h1>404 - Not found</h1>"
    page = on_post_template(html, "404.html", SimpleNamespace(site_url=address))
    assert f'<a href="{home}recipes/">' in page
    assert "404" not in page
    assert on_post_template(html, "sitemap.xml", None) == html


@pytest.mark.parametrize("name", shown_commands())
def test_the_page_of_a_command_has_its_usage_and_tables_of_three_columns(name):
    lines = list(command_reference(f"hdgemm {name}", shown_commands()[name]))
    assert lines[1] == f"# hdgemm {name}"
    assert lines[6].startswith(f"hdgemm {name}")
    assert lines[5] == "```text"
    for row in (line for line in lines if line.startswith("|")):
        assert len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) == 4, row
        assert "\\" not in "".join(re.findall(r"`([^`]*)`", row)), row
        assert "``" not in row


def test_search_takes_parts_of_names_for_words():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    separator = re.search(r"separator: '(.*)'", settings)[1]
    words = re.split(separator, "hdgemm.linalg.cho_solve --host-memory 1.5GB")
    assert words == ["hdgemm", "linalg", "cho_solve", "host", "memory", "1.5GB"]


def test_no_line_breaks_an_option_of_a_command():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="tutorial.md"))
    html = "<p><code>hdgemm plan --host-memory 1GB</code> --plain</p><pre><code>a\n--b</code></pre>"
    marked = html.replace("--host-memory", "<span>--host-memory</span>")
    assert on_page_content(html, page) == marked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_top_level_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing


@pytest.mark.campaign  # needs other hosts
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_link_to_another_host_leads_somewhere(address):
    request = urllib.request.Request(address, headers={"User-Agent": "hdgemm's link check"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except OSError as error:
        pytest.skip(f"no network: {address} cannot be reached ({error})")
    assert status not in {404, 410}


def test_the_documents_stay_short():
    words = {
        page.relative_to(ROOT): len(page.read_text(encoding="utf-8").split())
        for page in (ROOT / "docs").rglob("*.md")
    }
    longest = sorted(words, key=words.__getitem__, reverse=True)[:5]
    assert sum(words.values()) < 35_000, f"shorten a page, or drop one that repeats: {longest}"


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_committed_results(page):
    written = figures.page_with(page, figures.PAGES[page]())
    assert page.read_text(encoding="utf-8") == written, "run python -m bench.figures"


def test_the_command_line_prints_the_version_of_the_package():
    command = [sys.executable, "-m", "hdgemm", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"hdgemm {hdgemm.__version__}\n"
    assert f"## {hdgemm.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version: {hdgemm.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
