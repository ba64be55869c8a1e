"""The page in a real browser: submit with the plan shown first, watch, cancel, result."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hdgemm.server.numpy_backend import DELAY
from tests.server.harness import Live, finished, live, make_settings, submit, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="no chromium and chromedriver (Debian: chromium, chromium-driver)",
)
#: Where pictures of the page are to be kept, if anywhere.
PICTURES = os.environ.get("HDGEMM_PICTURES")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings = make_settings(tmp_path_factory.mktemp("page"))
    rng = np.random.default_rng(2)
    for name in ("a", "b"):
        np.save(settings.roots[0] / f"{name}.npy", rng.standard_normal((400, 400)))
    with live(settings, **{DELAY: "0.15"}) as started:
        yield started


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = selenium.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--window-size=1200,1400", f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(executable_path=DRIVER)
    driver = selenium.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def find(browser: Any, selector: str) -> Any:
    return wait_until(lambda: browser.find_elements("css selector", selector), 15)[0]


def text(browser: Any, selector: str = "main") -> str:
    """Read what is there now: an element that is kept is stale once it is drawn again."""
    script = "return document.querySelector(arguments[0])?.innerText ?? ''"
    return str(browser.execute_script(script, selector))


def picture(browser: Any, name: str) -> None:
    if PICTURES is not None:
        browser.save_screenshot(str(Path(PICTURES) / f"{name}.png"))


def fill_and_plan(browser: Any, url: str, name: str) -> None:
    browser.get("about:blank")
    browser.get(f"{url}/#/submit")
    find(browser, "input[name=a]").send_keys("a.npy")
    find(browser, "input[name=b]").send_keys("b.npy")
    find(browser, "input[name=name]").send_keys(name)
    assert not find(browser, "#send").is_enabled()
    find(browser, "#plan").click()
    wait_until(lambda: "memory held" in text(browser).lower(), 10)


def test_submit_watch_and_result(server: Live, browser: Any) -> None:
    fill_and_plan(browser, server.url, "watched")
    picture(browser, "submit")
    find(browser, "#send").click()
    wait_until(lambda: "#/job/" in browser.current_url, 10)
    wait_until(lambda: "limited by mult1" in text(browser), 15)
    wait_until(lambda: len(browser.find_elements("css selector", "svg.tiles rect.done")) >= 3, 15)
    picture(browser, "job")
    wait_until(lambda: "successful" in text(browser), 20)
    wait_until(lambda: text(browser, "#download").startswith("Download"))
    assert len(browser.find_elements("css selector", "svg.tiles rect.done")) == 10
    wait_until(lambda: "multiplying" in text(browser, "pre"))


def test_cancel(server: Live, browser: Any) -> None:
    fill_and_plan(browser, server.url, "cancelled")
    find(browser, "#send").click()
    wait_until(lambda: "limited by mult1" in text(browser), 15)
    browser.execute_script("document.getElementById('cancel').click()")
    wait_until(lambda: "dismissed" in text(browser), 15)


def test_the_queue_is_live_and_works_by_keyboard(server: Live, browser: Any) -> None:
    job_id = submit(server.http, a={"path": "a.npy"}, b={"path": "b.npy"}, name="by keyboard")
    browser.get("about:blank")
    browser.get(f"{server.url}/#/")
    wait_until(lambda: "by keyboard" in text(browser), 10)
    picture(browser, "queue")
    finished(server.http, job_id)
    link = f'a[href="#/job/{job_id}"]'
    browser.execute_script("arguments[0].focus()", find(browser, link))
    # It is drawn again every second, and keeps the focus.
    wait_until(lambda: "successful" in text(browser), 10)
    assert browser.switch_to.active_element.get_attribute("href").endswith(job_id)
    browser.switch_to.active_element.send_keys("\ue007")
    wait_until(lambda: job_id in browser.current_url, 5)


def test_narrow_and_dark(server: Live, browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": "dark"}]})  # fmt: skip
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True})  # fmt: skip
    for view in ("", "submit", "machine", "matrices"):
        browser.get("about:blank")
        browser.get(f"{server.url}/#/{view}")
        wait_until(lambda: "Loading" not in text(browser), 10)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 360, view
        picture(browser, f"narrow-{view or 'queue'}")
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert max(map(int, ground[4:-1].split(","))) < 60


def test_nothing_was_refused_or_failed_in_the_browser(browser: Any) -> None:
    loud = [
        entry["message"] for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE" and "gantt.png" not in entry["message"]
    ]  # fmt: skip
    assert loud == []
