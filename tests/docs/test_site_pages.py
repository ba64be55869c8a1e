"""Pages of the built site in a browser: accessible, and not wider than the screen."""

import http.server
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

#: The campaign of the site, which continuous integration runs with the extra docs.
pytestmark = pytest.mark.campaign
PAGES = (
    *("", "recipes/pca/", "reference/names/hdgemm.linalg.cho_solve/", "reference/formats/"),
    *("reference/commands/multiply/", "reference/names/hdgemm.StoredMatrix/", "404.html"),
)
#: Where pictures of the pages are to be kept, if anywhere.
PICTURES = os.environ.get("HDGEMM_PICTURES")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder],
        check=True,
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "HDGEMM_REPOSITORY": "https://example.org/h",
        },
    )
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the extra dev")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("no chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for one in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(one)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    started = webdriver.Chrome(options=options, service=service)
    started.set_script_timeout(120)
    yield started
    started.quit()


def test_a_page_is_printed_in_the_colours_of_the_light_scheme(site, browser):
    found = []
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "media": "print", "features": [{"name": "prefers-color-scheme", "value": scheme}],
        })  # fmt: skip
        browser.get(site + PAGES[1])
        found.append(browser.execute_script(
            "return ['pre .mi', 'pre .kn', 'article p', 'article p > a'].map("
            "each => getComputedStyle(document.querySelector(each)).color)"
        ))  # fmt: skip
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("query", "page"),
    [("pca", "recipes/pca/"), ("similarity", "recipes/similarity/"),
     ("parquet", "recipes/matlab-parquet/"), ("slurm", "recipes/slurm/"),
     ("jupyter", "recipes/"), ("uninstall", "platforms/"), ("cite", "citation/"),
     ("np.linalg.svd", "reference/names/hdgemm.linalg.svd/"), ("svd", "reference/names/"),
     ("--host-memory", "how-to/memory/")],
)  # fmt: skip
def test_search_finds(site, browser, query, page):
    """Among the first ten results."""
    wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait(browser, 60)
    browser.get(site)
    browser.execute_script(
        "const box = document.querySelector('.md-search__input'); box.focus();"
        "box.value = arguments[0]; box.dispatchEvent(new Event('input', {bubbles: true}));"
        "box.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))", query,
    )  # fmt: skip
    wait.until(lambda _: browser.find_elements("css selector", ".md-search-result__item > a"))
    found = browser.execute_script(
        "return [...document.querySelectorAll('.md-search-result__item > a')].map(a => a.href)"
    )
    assert any(each.startswith(site + page) for each in found[:10]), found


@pytest.mark.parametrize(
    "page", ["", "explanation/pipeline/", "explanation/strategies/", "recipes/slurm/",
             "recipes/pca/", "notebooks/product/", "how-to/service/"],
)  # fmt: skip
def test_a_picture_keeps_a_size_that_can_be_read_on_a_phone(site, browser, page):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True})  # fmt: skip
    browser.get(site + page)
    pictures = browser.execute_script(
        "return [...document.querySelectorAll('article img')].map("
        "each => [each.getAttribute('src'), each.naturalWidth, each.width])"
    )
    assert pictures
    assert [name for name, whole, shown in pictures if shown < 0.5 * whole] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page or "landing page")
def test_a_page_fits_and_axe_finds_nothing(site, browser, page, scheme, width):
    found = importlib.util.find_spec("axe_core_python")
    if found is None:
        pytest.skip("axe-core-python is not installed")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": scheme}]})  # fmt: skip
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})  # fmt: skip
    browser.get(site + page)
    browser.execute_script("localStorage.clear()")
    browser.refresh()
    if PICTURES:
        name = page.strip("/").replace("/", "-") or "landing"
        browser.save_screenshot(f"{PICTURES}/{name}-{scheme}-{width}.png")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.execute_script((Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    result = browser.execute_async_script("axe.run(document).then(arguments[arguments.length - 1])")
    wrong = [
        f"{one['id']}: {node['html']}" for one in result["violations"] for node in one["nodes"]
    ]
    assert not wrong
