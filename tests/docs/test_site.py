"""The document site builds without a broken link; links and figures of the pages are right."""

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
from docs.site_hooks import documented_path, on_page_content

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
    assert "hdgemm multiply" in commands
    assert f"hdgemm {hdgemm.__version__}" in commands
    assert "--host-memory" in commands
    names = tmp_path / "site/reference/names"
    for name in ("hdgemm.matmul", "hdgemm.linalg.svd", "hdgemm.linalg.RidgeFit"):
        page = (names / name / "index.html").read_text(encoding="utf-8")
        assert f'id="{documented_path(name)}"' in page
        assert 'doc-symbol-module"' not in page
        assert ('href="../../library/#calls"' in page) == ("Keywords of every call" in page)
        assert not re.search(r'<(script|link)[^>]+(src|href)="https?://', page), "no other hosts"


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
