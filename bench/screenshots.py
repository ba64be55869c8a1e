"""Screenshots of the document site and of the service's page, for a person to look at.

python -m bench.screenshots [FOLDER]

Landing page, a function's page and a recipe; the service without a job, with one that runs, with 39
more that wait, and with some that have ended; each at two widths, light and dark. Needs the extras
`dev` and `docs`, and Chromium.
"""

from __future__ import annotations

import argparse
import base64
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from selenium import webdriver

from bench.harness import ROOT
from tests.server.harness import Live, live, make_settings, submit, wait_until
from tests.server.numpy_library import DELAY, HOLD

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Pages of the site, by the name of their pictures.
PAGES: Final = {
    "landing": "",
    "function": "reference/names/hdgemm.linalg.svd/",
    "recipe": "recipes/pca/",
}
#: Width and height of the screen in CSS pixels, by whether it is a phone.
SCREENS: Final = {False: (1280, 900), True: (390, 844)}
#: Height in pixels at which a picture of a long page ends.
LONGEST: Final = 3000
JOBS: Final = 40
#: Jobs that have ended in the last pictures.
ENDED: Final = 5


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def site() -> Iterator[str]:
    """Build the document site and serve it; yield its address."""
    with tempfile.TemporaryDirectory(prefix="hdgemm-site-") as folder:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        subprocess.run(command, check=True, cwd=ROOT, env=environment)
        handler = partial(_Quiet, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/"
            server.shutdown()


@contextmanager
def service() -> Iterator[tuple[Live, Path]]:
    """Start a service; yield it and the file that holds its first job while it runs."""
    with tempfile.TemporaryDirectory(prefix="hdgemm-screenshots-") as name:
        settings = make_settings(Path(name), sample_seconds=0.1)
        for operand in ("features", "weights"):
            np.save(settings.roots[0] / f"{operand}.npy", np.ones((40, 40)))
        hold = settings.roots[0] / "hold"
        hold.touch()
        with live(settings, **{DELAY: "0.02", HOLD: str(hold)}) as server:
            yield server, hold
            hold.unlink(missing_ok=True)


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Start Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    driver = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    started = webdriver.Chrome(options=options, service=driver)
    try:
        yield started
    finally:
        started.quit()


def take(page: webdriver.Chrome, url: str, folder: Path, name: str, ready: str) -> None:
    """Store pictures of a page at both widths, light and dark, when it has an element `ready`."""
    for phone, (width, height) in SCREENS.items():
        for scheme in ("light", "dark"):
            scheme_of: list[Any] = [{"name": "prefers-color-scheme", "value": scheme}]
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme_of})
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
            page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            page.get("about:blank")  # an address that differs in its fragment is not loaded anew
            page.get(url)
            wait_until(lambda: page.find_elements("css selector", ready), 60)
            tall = page.execute_script("return document.documentElement.scrollHeight")
            clip = {"x": 0, "y": 0, "width": width, "height": min(tall, LONGEST), "scale": 1}
            shown = page.execute_cdp_cmd(
                "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
            )
            picture = base64.b64decode(shown["data"])
            (folder / f"{name}-{width}-{scheme}.png").write_bytes(picture)


def take_service(page: webdriver.Chrome, server: Live, hold: Path, folder: Path) -> None:
    """Store pictures of the service's page with 0, 1 and 40 jobs, of a job, and of the machine.

    The jobs go on when `hold` is removed, for a picture with some that have ended.
    """
    jobs: list[str] = []
    wait_until(lambda: server.http.get("/v1/system").json()["workers"])
    for count, ready in ((0, ".card"), (1, "tbody progress"), (JOBS, "#older-waiting")):
        while len(jobs) < count:
            name = f"night run {len(jobs) + 1} of the week"
            a, b = {"path": "features.npy"}, {"path": "weights.npy"}
            jobs.append(submit(server.http, a=a, b=b, name=name))
        if count == 1:
            wait_until(lambda: server.http.get(f"/v1/jobs/{jobs[0]}").json()["status"] == "running")
        take(page, f"{server.url}/#/", folder, f"service-{count}", ready)
    take(page, f"{server.url}/#/job/{jobs[0]}", folder, "service-job", "svg.tiles")
    take(page, f"{server.url}/#/machine", folder, "service-machine", "svg")
    hold.unlink()
    wait_until(lambda: len(server.http.get("/v1/jobs?status=successful").json()["jobs"]) >= ENDED)
    take(page, f"{server.url}/#/", folder, "service-ended", "#older-waiting")


def main() -> None:
    """Store all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "screenshots")
    folder = parser.parse_args().folder
    if find_spec("mkdocs") is None:
        parser.exit(2, "the site needs the extra docs: make docs\n")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        page = stack.enter_context(browser())
        address = stack.enter_context(site())
        for name, path in PAGES.items():
            take(page, address + path, folder, name, "article h1")
        server, hold = stack.enter_context(service())
        take_service(page, server, hold, folder)
    print(f"{len(list(folder.glob('*.png')))} pictures in {folder}")


if __name__ == "__main__":
    main()
