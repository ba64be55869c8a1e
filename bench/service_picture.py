"""The page's picture in the documentation: a real job in headless Chromium.

python -m bench.service_picture docs/pictures/service-job.png
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from selenium import webdriver

from tests.server.harness import Live, make_settings, submit, wait_until


def browser(folder: Path, height: int) -> webdriver.Chrome:
    """Start a browser that shows one tall page."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    profile = folder / "profile"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 f"--window-size=1200,{height}", f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(flag)
    driver = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=driver)


def main() -> None:
    """Run a job, open its page while it runs, and save what is seen."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="hdgemm-picture-") as name:
        folder = Path(name)
        library = "hdgemm.server.hdgemm_backend:HdgemmLibrary"
        settings = make_settings(
            folder, library=library, memory=1 << 30, lease_seconds=20.0, job_niceness=0
        )
        rng = np.random.default_rng(1)
        for operand in ("a", "b"):
            np.save(settings.roots[0] / f"{operand}.npy", rng.standard_normal((7000, 7000)))
        server = Live(settings, OMP_NUM_THREADS=str(os.cpu_count())).wait()
        page = browser(folder, 1150)
        try:
            job_id = submit(
                server.http, a={"path": "a.npy"}, b={"path": "b.npy"}, name="night run",
                options={"host_memory": "300MB", "verify": True},
            )  # fmt: skip
            page.get(f"{server.url}/#/job/{job_id}")

            def half() -> bool:
                detail = server.http.get(f"/v1/jobs/{job_id}").json()["detail"] or {}
                return bool(detail.get("percent", 0) > 40)

            wait_until(half, 400)
            wait_until(lambda: page.find_elements("css selector", "polyline.line"), 20)
            page.save_screenshot(str(target))
        finally:
            page.quit()
            server.close()


if __name__ == "__main__":
    main()
