"""Takes the picture of a report that the README shows; needs Chromium: python docs/pictures/report.py."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import postmortem
from postmortem.reporters import REPORTERS, RenderOptions

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main() -> None:
    """Writes report.png beside this file."""
    os.chdir(ROOT)  # paths in the report are then those of the repository
    report = postmortem.scan("sample_runs", draw=True, replay_failed=True)
    chosen = report["nan-log-of-zero"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page_file = Path(folder) / "report.html"
        page_file.write_text(REPORTERS["html"](report, RenderOptions()), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1150, "height": 1500})
        page.goto(page_file.as_uri())
        page.locator(f"text={chosen.name}").first.click()
        page.wait_for_timeout(300)
        assert str(ROOT) not in page.inner_text("body"), "a path of this machine would be in the picture"
        page.screenshot(path=HERE / "report.png")
        browser.close()


if __name__ == "__main__":
    main()
