"""The page in a real browser: submit, watch, download, cancel, fail, and look at it everywhere."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sqlalchemy as sa

from hdgemm.server.database import Database
from hdgemm.server.execution import PROCESSES
from hdgemm.server.tables import Job
from tests.server.harness import (
    Live,
    finished,
    live,
    make_settings,
    served,
    submit,
    token,
    upload,
    wait_until,
)
from tests.server.numpy_library import DELAY, HOLD

if TYPE_CHECKING:
    from collections.abc import Iterator

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None,
        reason="no chromium and chromedriver (Debian: chromium, chromium-driver)",
    ),
]
#: Where pictures of the page are to be kept, if anywhere.
PICTURES = os.environ.get("HDGEMM_PICTURES")
#: Words that each view shows once it is drawn.
SHOWN = {
    "": "Finished",
    "submit": "Advanced options",
    "matrices": "on disk",
    "machine": "Throughput",
    "job": "Opening files",
}
A, B = {"path": "a.npy"}, {"path": "b.npy"}
TAB, ENTER = "\ue004", "\ue007"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings = make_settings(tmp_path_factory.mktemp("page"), sample_seconds=0.1)
    rng = np.random.default_rng(2)
    for name in ("a", "b"):
        np.save(settings.roots[0] / f"{name}.npy", rng.standard_normal((40, 40)))
    np.save(settings.roots[0] / "wide.npy", np.ones((3, 7)))
    with live(settings, **{DELAY: "0.02", HOLD: str(settings.roots[0] / "hold")}) as started:
        yield started


@pytest.fixture
def hold(server: Live) -> Iterator[Path]:
    """A file that holds jobs after their third step: on any machine they are seen running."""
    file = server.settings.roots[0] / "hold"
    file.touch()
    yield file
    file.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def ended(server: Live) -> tuple[str, str]:
    """A job that succeeded, and one that failed because its input was removed."""
    gone = server.settings.roots[0] / "gone.npy"
    np.save(gone, np.ones((40, 40)))
    succeeds = submit(server.http, a=A, b=B, name="succeeds")
    fails = submit(server.http, a={"path": "gone.npy"}, b=B, name="fails")
    gone.unlink()
    assert finished(server.http, succeeds)["status"] == "successful"
    assert finished(server.http, fails)["status"] == "failed"
    return succeeds, fails


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
    return wait_until(lambda: browser.find_elements("css selector", selector))[0]


def click(browser: Any, selector: str) -> None:
    """Click in one step: a redraw could replace the element between finding and clicking."""
    find(browser, selector)
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def text(browser: Any, selector: str = "main") -> str:
    """Return the text as it is now, for the same reason."""
    script = "return document.querySelector(arguments[0])?.innerText ?? ''"
    return str(browser.execute_script(script, selector))


def see(browser: Any, words: str, selector: str = "main") -> None:
    try:
        wait_until(lambda: words in text(browser, selector))
    except AssertionError:
        raise AssertionError(f"{words!r} is not in {text(browser, selector)!r}") from None


def choose(browser: Any, selector: str, value: str) -> None:
    find(browser, selector)
    browser.execute_script(
        "const node = document.querySelector(arguments[0]); node.value = arguments[1];"
        "node.dispatchEvent(new Event('change', {bubbles: true}));"
        "node.dispatchEvent(new Event('input', {bubbles: true}))", selector, value,
    )  # fmt: skip


def press(browser: Any, key: str) -> None:
    """Press a key where the focus is."""
    selenium.ActionChains(browser).send_keys(key).perform()


def visit(browser: Any, server: Live, view: str) -> None:
    browser.get("about:blank")
    browser.get(f"{server.url}/#/{view}")
    wait_until(lambda: text(browser) and "Loading" not in text(browser))


def picture(browser: Any, name: str) -> None:
    if PICTURES is not None:
        browser.save_screenshot(str(Path(PICTURES) / f"{name}.png"))


def fill(browser: Any, server: Live, name: str) -> None:
    visit(browser, server, "submit")
    find(browser, "#field-a").send_keys("a.npy")
    find(browser, "#field-b").send_keys("b.npy")
    find(browser, "#field-name").send_keys(name)


def current_job(browser: Any) -> str:
    wait_until(lambda: "#/job/" in browser.current_url)
    return str(browser.current_url.rpartition("/")[2])


def test_submit_by_upload_watch_and_download(
    server: Live, browser: Any, hold: Path, tmp_path: Path
) -> None:
    a, b = np.arange(20.0).reshape(4, 5), np.arange(15.0).reshape(5, 3)
    visit(browser, server, "submit")
    for name, data in (("a", a), ("b", b)):
        np.save(tmp_path / f"up-{name}.npy", data)
        choose(browser, f"#field-{name}-kind", "upload")
        find(browser, f"#field-{name}-file").send_keys(str(tmp_path / f"up-{name}.npy"))
        see(browser, f"up-{name}.npy is uploaded: {data.shape[0]} × {data.shape[1]} float64")
    see(browser, "Memory held", "#answer")
    choose(browser, "#field-options-verify", "true")
    find(browser, "#field-name").send_keys("watched")
    picture(browser, "submit")
    click(browser, "#send")
    job_id = current_job(browser)
    see(browser, "limited by mult1")
    wait_until(lambda: " % – watched – hdgemm" in browser.title)
    wait_until(lambda: browser.find_elements("css selector", "polyline.line"))
    picture(browser, "job")
    hold.unlink()
    see(browser, "Passed: C is the product")
    see(browser, "Done in")
    wait_until(lambda: "successful – watched" in browser.title)
    assert len(browser.find_elements("css selector", "svg.tiles rect.done")) == 4
    for phase in ("Waiting", "Multiplying", "Verifying", "Hashing the result", "Publishing"):
        see(browser, phase, ".phases")
    folder = tmp_path / "downloads"
    browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)}
    )
    click(browser, "#download")
    file = wait_until(lambda: list(folder.glob("watched*.npy")))[0]
    np.testing.assert_array_equal(np.load(file), a @ b)
    click(browser, "#get-report")
    report = wait_until(lambda: list(folder.glob("*-report.json")))[0]
    assert json.loads(report.read_text())["verification"]["passed"] is True
    click(browser, "#again")
    see(browser, "Memory held", "#answer")
    assert find(browser, "#field-a-kind").get_property("value") == "matrix"
    assert find(browser, "#field-name").get_property("value") == "watched"
    assert find(browser, "#field-options-verify").get_property("value") == "true"
    assert job_id not in browser.current_url.partition("again/")[0]


def test_files_are_chosen_in_a_dialog_and_the_plan_follows(server: Live, browser: Any) -> None:
    visit(browser, server, "submit")
    for name, file in (("a", "wide.npy"), ("b", "b.npy")):
        click(browser, f"#field-{name}-browse")
        root = "button:not([disabled])"
        find(browser, f"#files li {root}")
        see(browser, "root/", "#files")
        click(browser, f"#files li {root}")
        see(browser, file, "#files")
        browser.execute_script(
            "[...document.querySelectorAll('#files button')]"
            ".find((one) => one.textContent === arguments[0]).click()",
            file,
        )
        wait_until(lambda: not browser.find_elements("css selector", "#question"))
    see(browser, "7 columns meet 40 rows", "#answer")
    choose(browser, "#field-a", "a.npy")
    see(browser, "40 × 40 × 40", "#answer")


def test_errors_stand_at_their_field(server: Live, browser: Any) -> None:
    fill(browser, server, "wrong")
    see(browser, "Memory held", "#answer")
    choose(browser, "#field-alpha", "much")
    see(browser, 'alpha is "much": it must be a number', "#field-alpha-error")
    assert find(browser, "#field-alpha").get_attribute("aria-invalid") == "true"
    choose(browser, "#field-alpha", "2")
    choose(browser, "#field-options-host_memory", "lots")
    see(browser, 'options.host_memory is "lots"', "#field-options-host_memory-error")
    assert find(browser, "details.group").get_property("open") is True
    picture(browser, "errors")
    choose(browser, "#field-options-host_memory", "1 MB")
    see(browser, "Memory held", "#answer")


def test_every_process_has_a_form(server: Live, browser: Any) -> None:
    listed = server.http.get("/v1/processes").json()["processes"]
    visit(browser, server, "submit")
    for process in (one["id"] for one in listed):
        inputs = server.http.get(f"/v1/processes/{process}").json()["inputs"]
        choose(browser, "#process", process)
        for name in inputs:
            if name not in {"output", "options"}:
                find(browser, f"[name='{name}']")


def test_devices_of_a_form_are_chosen_again_for_another_process(server: Live, browser: Any) -> None:
    selected = "return [...document.querySelector(\"[name='options.devices']\").selectedOptions]"
    visit(browser, server, "submit")
    for process, device in (("gemm", "auto"), ("det", "host")):
        choose(browser, "#process", process)
        see(browser, {"gemm": "Transpose A", "det": "Name"}[process])
        wait_until(
            lambda device=device: (
                browser.execute_script(f"{selected}.map((one) => one.value)") == [device]
            )
        )


def test_cancel_asks_first(server: Live, browser: Any, hold: Path) -> None:
    job_id = submit(server.http, a=A, b=B, name="cancelled", options={"strategy": "hybrid"})
    visit(browser, server, f"job/{job_id}")
    see(browser, "limited by mult1")
    # While several devices compute C, its map has the colour of each.
    for colour in ("colour-0", "colour-1"):
        find(browser, f"svg.tiles rect.done.{colour}")
    assert "other" in text(browser, ".charts .legend")
    see(browser, "Gantt chart of the last operations")
    find(browser, "svg[aria-label^='Gantt chart'] rect.fill")
    picture(browser, "devices")
    behind = submit(server.http, a=A, b=B, name="behind")
    visit(browser, server, "")
    see(browser, "Waiting, in the order in which they start")
    see(browser, "every device is busy", "[aria-label='Waiting jobs']")
    picture(browser, "queue")
    visit(browser, server, f"job/{behind}")
    see(browser, "Waiting: ")
    server.http.post(f"/v1/jobs/{behind}/cancel").raise_for_status()
    visit(browser, server, f"job/{job_id}")
    click(browser, "#cancel")
    see(browser, "Stop this job?", "#question")
    click(browser, "#keep")
    click(browser, "#cancel")
    click(browser, "#confirm")
    see(browser, "dismissed")
    assert finished(server.http, job_id)["status"] == "dismissed"
    hold.unlink()
    click(browser, "#delete")
    click(browser, "#confirm")
    wait_until(lambda: server.http.get(f"/v1/jobs/{job_id}").status_code == 404)


def test_jobs_have_names_of_files_and_processes(server: Live, browser: Any) -> None:
    job_id = submit(server.http, a=A, b=B)
    assert finished(server.http, job_id)["status"] == "successful"
    visit(browser, server, "")
    see(browser, "Multiply a.npy, b.npy", "[aria-label='Finished jobs']")
    assert job_id[:8] not in text(browser)
    visit(browser, server, f"job/{job_id}")
    see(browser, "Process\nMultiply")


def test_jobs_have_the_names_of_uploaded_matrices(server: Live, browser: Any) -> None:
    matrix = upload(server.http, np.eye(3), name="weights of March.npy")
    job_id = submit(server.http, a={"matrix": matrix}, b={"matrix": matrix})
    assert finished(server.http, job_id)["status"] == "successful"
    visit(browser, server, "")
    named = "Multiply weights of March.npy, weights of March.npy"
    see(browser, named, "[aria-label='Finished jobs']")
    visit(browser, server, f"job/{job_id}")
    see(browser, named, "h2")
    see(browser, "uploaded matrix weights of March.npy")


def test_every_process_has_a_name(server: Live, browser: Any) -> None:
    visit(browser, server, "")
    shown = browser.execute_async_script(
        "import('./static/show.js')"
        ".then(({processName}) => arguments[1](arguments[0].map(processName)))",
        list(PROCESSES),
    )
    assert not set(shown) & set(PROCESSES)


def test_what_moved_is_never_shown_as_none(server: Live, browser: Any) -> None:
    visit(browser, server, "")
    shown = browser.execute_async_script(
        "import('./static/show.js')"
        ".then(({rate}) => arguments[0]([0.0000035, 0.04, 0, 139.24].map(rate)))"
    )
    assert shown == ["0.0000035", "0.04", "–", "139.2"]


def test_lists_of_numbers_are_shown_from_their_beginning(server: Live, browser: Any) -> None:
    visit(browser, server, "")
    shown = browser.execute_async_script(
        "import('./static/show.js')"
        ".then(({valueText}) => arguments[1](arguments[0].map(valueText)))",
        [1 / 3, "fro", True, [0], [[1, 2.5], [3, 4], [5, 6], [7, 8]]],
    )
    assert shown == ["0.333333", "fro", "true", "0", "1, 2.5, 3, 4, 5, 6, …"]


def test_marks_of_an_axis_fit_beside_it(server: Live, browser: Any) -> None:
    visit(browser, server, "")
    places = browser.execute_async_script(
        "import('./static/charts.js').then(({lineChart}) => {"
        "const host = document.querySelector('main').appendChild(document.createElement('div'));"
        "const drawn = [8e-5, 123456, 5e7].map((top) => {"
        "lineChart(host, {label: 'x', unit: 'y', from: 0, to: 1, series: [{points: [[0, top]]}]});"
        "return [...host.querySelectorAll('text')].map((one) => one.getBBox().x); });"
        "host.remove(); arguments[0](drawn.flat()); })"
    )
    assert len(places) > 12
    assert min(places) >= 0


def test_a_phone_shows_finished_jobs_before_the_queue(
    server: Live, ended: tuple[str, str], browser: Any, hold: Path
) -> None:
    jobs = [submit(server.http, a=A, b=B) for _ in range(2)]
    wide = browser.get_window_size()
    try:
        browser.set_window_size(500, 900)
        visit(browser, server, "")
        see(browser, "Waiting, in the order in which they start")
        shown = text(browser)
        assert shown.index("Finished, newest first") < shown.index("Waiting, in the order")
        card = find(browser, "table[aria-label='Waiting jobs'] tbody tr")
        lines = {cell.location["y"] for cell in card.find_elements("css selector", "td:not(.none)")}
        assert len(lines) <= 4, "a card of a waiting job is taller than four lines"
    finally:
        browser.set_window_size(wide["width"], wide["height"])
        for job_id in reversed(jobs):
            server.http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    hold.unlink()
    for job_id in jobs:
        finished(server.http, job_id)


def test_a_failed_job_says_why(server: Live, ended: tuple[str, str], browser: Any) -> None:
    visit(browser, server, f"job/{ended[1]}")
    see(browser, "cannot open")
    see(browser, "The inputs or options are the cause")
    assert find(browser, ".phases li.failed").text.startswith("Opening files")
    assert not browser.find_elements("css selector", ".phases li.failed ~ li")
    picture(browser, "failed")
    for unknown in ("0" * 32, "nonsense"):
        visit(browser, server, f"job/{unknown}")
        see(browser, "No such job")
        see(browser, "It was deleted, or it belongs to another token.")


def test_warnings_of_a_run_are_shown(server: Live, browser: Any) -> None:
    job_id = submit(server.http, "det", a=A)
    report = finished(server.http, job_id)["report"]
    database = Database(server.settings.url)
    with database.write() as conn:
        warned = {**report, "warnings": ["inf is returned", "take slogdet"]}
        conn.execute(sa.update(Job).where(Job.id == job_id).values(report=warned))
    database.close()
    visit(browser, server, f"job/{job_id}")
    see(browser, "Warnings\n\ninf is returned\n\ntake slogdet", ".card.warning")


def test_a_long_name_leaves_room_for_the_other_columns(server: Live, browser: Any) -> None:
    name = ("Zürich, <b>all</b> the words of a title " * 5)[:200].strip()
    job_id = submit(server.http, a=A, b=B, name=name)
    finished(server.http, job_id)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False})  # fmt: skip
    try:
        visit(browser, server, "")
        see(browser, name)
        shown, hidden, *lines = browser.execute_script(
            "const link = document.querySelector(`a[href='#/job/${arguments[0]}']`);"
            "const lines = (cell) => { const range = new Range(); range.selectNodeContents(cell);"
            "  return range.getClientRects().length; };"
            "const cells = ['Process', 'Shape'].map((label) =>"
            "  link.closest('tr').querySelector(`td[data-label='${label}']`));"
            "return [link.title, link.scrollWidth - link.clientWidth, ...cells.map(lines)]",
            job_id,
        )
        assert shown == name
        assert hidden > 0
        assert lines == [1, 1]
        picture(browser, "long-name")
        visit(browser, server, "submit")
        boxes = [find(browser, f"#field-trans_{letter}").location for letter in "ab"]
        assert boxes[0]["y"] == boxes[1]["y"]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_addresses_of_no_page_say_so(server: Live, ended: tuple[str, str], browser: Any) -> None:
    for unknown in ("nonsense", "constructor", f"task/{ended[0]}"):
        visit(browser, server, unknown)
        see(browser, f"There is no page #/{unknown}"[:50])
    visit(browser, server, f"jobs/{ended[0]}")
    see(browser, "Done in")
    visit(browser, server, "jobs")
    see(browser, "Finished, newest first")


def test_matrices_are_uploaded_used_and_deleted(server: Live, browser: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "kept.npy", np.ones((6, 6)))
    np.save(tmp_path / "text.npy", np.array([["a"]]))
    visit(browser, server, "matrices")
    find(browser, "#file").send_keys(str(tmp_path / "text.npy"))
    see(browser, "allowed are float64, float32, complex128, complex64")
    find(browser, "#file").send_keys(str(tmp_path / "kept.npy"))
    see(browser, "kept.npy is uploaded: 6 × 6 float64.")
    see(browser, "416 B")
    matrix = server.http.get("/v1/matrices").json()["matrices"][0]["id"]
    picture(browser, "matrices")
    click(browser, f'a[href="#/submit/matrix/{matrix}"]')
    wait_until(lambda: find(browser, "#field-a-matrix").get_property("value") == matrix)
    visit(browser, server, "matrices")
    click(browser, f"#delete-{matrix}")
    click(browser, "#confirm")
    wait_until(lambda: server.http.get(f"/v1/matrices/{matrix}").status_code == 404)


def test_keyboard_alone(server: Live, browser: Any) -> None:
    fill(browser, server, "by keyboard")
    see(browser, "Memory held", "#answer")
    find(browser, "#field-name").send_keys(ENTER)
    job_id = current_job(browser)
    finished(server.http, job_id)
    visit(browser, server, "")
    press(browser, TAB)
    assert browser.execute_script("return document.activeElement.id") == "skip"
    for _ in range(60):
        press(browser, TAB)
        active = browser.execute_script("return document.activeElement.getAttribute('href')")
        if active == f"#/job/{job_id}":
            break
    ring = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"
    browser.execute_script("window.drawn = document.activeElement")
    # The list is drawn again every two seconds; the focus stays on the link.
    wait_until(lambda: browser.execute_script("return !window.drawn.isConnected"))
    active = browser.execute_script("return document.activeElement.getAttribute('href')")
    assert active == f"#/job/{job_id}"
    press(browser, ENTER)
    wait_until(lambda: job_id in browser.current_url)
    see(browser, "successful")


def axe(browser: Any) -> list[str]:
    """Return what axe-core finds on the page as it is."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("axe-core-python is not installed")
    script = (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    browser.execute_script(script)
    result = browser.execute_async_script("axe.run(document).then(arguments[arguments.length - 1])")
    return [f"{one['id']}: {node['html']}" for one in result["violations"] for node in one["nodes"]]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_every_view_fits_and_axe_finds_nothing(
    server: Live, ended: tuple[str, str], browser: Any, scheme: str, width: int
) -> None:
    job_id, failed = ended
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": scheme}]})  # fmt: skip
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})  # fmt: skip
    try:
        for view in ("", "submit", "matrices", "machine", f"job/{failed}", f"job/{job_id}"):
            visit(browser, server, view)
            see(browser, SHOWN[view.partition("/")[0]])
            if view == "submit":
                find(browser, "details")
                browser.execute_script("document.querySelector('details').open = true")
            picture(browser, f"{width}-{scheme}-{view.partition('/')[0] or 'jobs'}")
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, view
            assert axe(browser) == [], view
        ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        bright = max(map(int, ground[4:-1].split(",")))
        assert bright < 60 if scheme == "dark" else bright > 200
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_ten_thousand_jobs_are_filtered_and_paged(
    server: Live, ended: tuple[str, str], browser: Any
) -> None:
    database = Database(server.settings.url)
    with database.write() as conn:
        row = dict(conn.execute(sa.select(Job).where(Job.id == ended[0])).one()._mapping)
        for name in ("seq", "idempotency_key"):
            row.pop(name)
        rows = [
            {**row, "id": f"{number:032x}", "name": f"old {number}"} for number in range(10_000)
        ]
        conn.execute(sa.insert(Job), [{**one, "idempotency_key": None} for one in rows])
    database.close()
    visit(browser, server, "")
    see(browser, "old 9999")
    assert len(browser.find_elements("css selector", "tbody tr")) < 100
    click(browser, "#older-finished")
    see(browser, "page 2")
    see(browser, "old 9974")
    click(browser, "#newer-finished")
    see(browser, "old 9999")
    find(browser, "#search").send_keys("OLD 4321")
    see(browser, "Jobs that match")
    wait_until(lambda: len(browser.find_elements("css selector", "tbody tr")) == 1)
    assert "old 4321" in text(browser, "tbody")
    find(browser, "#search").send_keys("x")
    see(browser, "No job matches.")
    browser.execute_script("document.getElementById('search').value = ''")
    choose(browser, "#status", "failed")
    see(browser, "fails")
    assert "old" not in text(browser, "tbody")


@pytest.mark.parametrize("view", ["", "job"])
def test_a_server_that_is_gone_is_named_until_it_answers_again(
    server: Live, browser: Any, hold: Path, view: str
) -> None:
    job_id = submit(server.http, a=A, b=B, name="goes on")
    visit(browser, server, f"job/{job_id}" if view else view)
    see(browser, "goes on")
    server.kill()
    see(browser, "The service does not answer: is hdgemm serve running?", "#notice")
    if not view:  # another view is opened when the server is back
        click(browser, "nav a[href='#/machine']")
        see(browser, "Loading")
    server.restart()
    server.wait()
    wait_until(lambda: not text(browser, "#notice"))
    see(browser, "goes on" if view else "Disk of the service")
    server.http.post(f"/v1/jobs/{job_id}/cancel")


def test_the_page_asks_for_a_token_until_it_is_valid(browser: Any, tmp_path: Path) -> None:
    with served(make_settings(tmp_path)) as guarded:
        secret = token(guarded.app, "ada")
        browser.get(f"{guarded.url}/#/")
        see(browser, "This server asks for a token", "#login")
        for wrong in ("wrong", "行列"):  # no header takes the second
            find(browser, "#login[open] #token").send_keys(wrong + ENTER)
            see(browser, "The token is not valid", "#login")
        find(browser, "#login[open] #token").send_keys(secret + ENTER)
        see(browser, "There is no job yet")
        browser.get("about:blank")


def test_nothing_was_refused_or_failed_in_the_browser(browser: Any) -> None:
    expected = ("gantt.png", "/history", "/execution", "/v1/jobs/", "ERR_", "401 (")
    loud = [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE" and not any(word in entry["message"] for word in expected)
    ]
    assert loud == []
