"""The tab "Postmortem" in a real TensorBoard, in a real browser."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorboard")

ROOT = Path(__file__).parents[2]
POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["tensorboard_plugins"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """With the entry point of pyproject.toml, as an installation has it, where this one is older."""
    path = [str(ROOT)]
    if "postmortem" not in {e.name for e in importlib.metadata.entry_points(group="tensorboard_plugins")}:
        installed = tmp_path_factory.mktemp("installed")
        info = installed / "with_postmortem-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: with-postmortem\nVersion: 1.0\n")
        lines = [f"{name} = {place}\n" for name, place in POINTS.items()]
        (info / "entry_points.txt").write_text("[tensorboard_plugins]\n" + "".join(lines))
        path.append(str(installed))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def server(environment, tmp_path_factory):
    """The address of a TensorBoard over two sample runs."""
    yield from _served(["-m", "tensorboard.main"], environment, tmp_path_factory)


def _served(program, environment, tmp_path_factory):
    folder, said_to = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("said") / "tensorboard.txt"
    for name in ("nan-log-of-zero", "restart"):
        shutil.copytree(ROOT / "sample_runs" / name, folder / name, ignore=shutil.ignore_patterns("*.pt"))
    command = [sys.executable, *program, "--logdir", folder, "--port", "0", "--host", "127.0.0.1"]
    with said_to.open("w") as said:
        process = subprocess.Popen(
            [*command, "--load_fast", "false"], env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
    try:
        yield _address(process, said_to)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process, said):
    for _ in range(600):
        if found := re.search(r"at (http://[^ ]+)", said.read_text()):
            return found[1].rstrip("/")
        assert process.poll() is None, said.read_text()
        time.sleep(0.1)
    raise AssertionError(said.read_text())


def test_the_tab_shows_findings_that_link_to_their_step(server, browser):
    """The run that became NaN, its finding, and a click on its step: the report's charts zoom to it."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{server}/#postmortem")
    tab = page.frame_locator("iframe").first
    run = tab.locator("details", has_text="nan-log-of-zero")
    run.wait_for(timeout=60_000)
    assert tab.locator("header").inner_text().endswith("2 runs: 1 failed, 1 suspect")
    assert "train/loss is NaN at step 156" in run.inner_text()
    report = tab.frame_locator("iframe")
    report.locator(".run canvas").first.wait_for(timeout=20_000)
    run.get_by_role("link", name="step 156").first.click()
    section = report.locator("details.run", has=page.locator("h2", has_text="nan-log-of-zero"))
    assert section.get_attribute("open") is not None
    assert section.locator(".charts").get_attribute("data-step") == "156"
    link = run.get_by_role("link", name="train/loss in Time Series").first
    assert link.get_attribute("href") == "../../../?tagFilter=%5Etrain%2Floss%24#timeseries"
    link.click()
    page.wait_for_url(re.compile(r"/\?.*tagFilter=.*#timeseries"))
    assert errors == []
    if "SCREENSHOTS" in os.environ:
        page.goto(f"{server}/#postmortem")
        tab.locator("details").first.wait_for()
        run.get_by_role("link", name="step 156").first.click()
        page.wait_for_timeout(1500)
        page.screenshot(path=f"{os.environ['SCREENSHOTS']}/tensorboard.png")
    page.close()


def test_tensorboard_lists_the_tab_and_its_other_tabs_work(server):
    """The plugin is listed as active; TensorBoard reads the runs as ever."""
    with urllib.request.urlopen(f"{server}/data/plugins_listing", timeout=20) as answer:
        listing = json.load(answer)
    assert listing["postmortem"]["enabled"]
    assert listing["postmortem"]["tab_name"] == "Postmortem"
    with urllib.request.urlopen(f"{server}/data/runs", timeout=20) as answer:
        assert json.load(answer) == ["nan-log-of-zero", "restart"]


BROKEN = """
from postmortem.integrations.tensorboard import scanner
from tensorboard.main import run_main

def broken(self, *args, **options):
    raise RuntimeError("broken while it answers")

scanner.Scanner.want = scanner.Scanner.page = broken
run_main()
"""


def test_an_error_in_an_answer_of_the_tab_leaves_tensorboard_running(environment, tmp_path_factory):
    """A real TensorBoard whose tab raises at each request: that request fails, the others are answered as before."""
    for address in _served(["-c", BROKEN], environment, tmp_path_factory):
        for route in ("findings", "page", "findings"):
            with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
                urllib.request.urlopen(f"{address}/data/plugin/postmortem/{route}", timeout=20)
            with urllib.request.urlopen(f"{address}/data/runs", timeout=20) as answer:
                assert json.load(answer) == ["nan-log-of-zero", "restart"]


def context(folder):
    return SimpleNamespace(logdir=str(folder), flags=SimpleNamespace(logdir_spec=""))


def settled(plugin):
    """The state after the scan under way."""
    plugin._scanner.want()
    for _ in range(600):
        if not (state := plugin._scanner.state())["running"]:
            return state
        time.sleep(0.05)
    raise AssertionError("the scan does not end")


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("nowhere", "no such file or folder"),
        ("gs://bucket/logs", "only local log folders"),
        ("", "only local log folders"),
    ],
)
def test_a_folder_that_cannot_be_scanned_is_said_in_the_tab(tmp_path, folder, said):
    """The server goes on; the tab has one line."""
    from postmortem.integrations.tensorboard import PostmortemLoader

    state = settled(PostmortemLoader().load(context(folder and (folder if ":" in folder else tmp_path / folder))))
    assert state["state"] == "failed"
    assert said in state["message"]


def test_a_scan_that_dies_is_said_in_the_tab(tmp_path, monkeypatch):
    """A process that crashes, and one that cannot be started."""
    from postmortem.integrations.tensorboard.scanner import Scanner

    for program in (shutil.which("false"), str(tmp_path / "no-python")):
        monkeypatch.setattr("sys.executable", program)
        state = settled(SimpleNamespace(_scanner=Scanner(str(tmp_path))))
        assert state["state"] == "failed"
        assert state["message"]


def test_an_error_while_loading_leaves_tensorboard_without_the_tab(tmp_path):
    """TensorBoard guards the loader; importing the module needs nothing but TensorBoard itself."""
    from tensorboard.backend import application

    from postmortem.integrations.tensorboard import PostmortemLoader

    class Broken(PostmortemLoader):
        def load(self, context):
            raise RuntimeError("broken")

    flags = SimpleNamespace(
        path_prefix="",
        experimental_plugins=(),
        generic_data="auto",
        logdir=str(tmp_path),
        samples_per_plugin={},
        window_title="",
    )
    made = application.TensorBoardWSGIApp(flags, [Broken, PostmortemLoader])
    assert callable(made)
