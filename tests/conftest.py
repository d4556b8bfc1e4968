"""Fixtures that several folders of tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None, max_examples=50)  # a slow or busy one fails no test
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "any machine"))

# Under nohup, or where a service starts the tests, signals may be ignored. Children would inherit that: their Ctrl-C
# would do nothing, and a shell cannot trap what was ignored when it began.
for _number in (
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# Containers often set this. Then each of the many commands that tests start would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# One thread each: the programs that tests train are small, and as many workers as there are cores run at a time.
os.environ["OMP_NUM_THREADS"] = "1"
_STARTUP = str(Path(__file__).parent / "startup")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_STARTUP, os.environ.get("PYTHONPATH")]))

ROOT = Path(__file__).parent.parent
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_CLOSING = 20  # seconds


_LONGEST = ("attach", "silent", "cli", "integrations", "replay")
"""Folders whose files take longest. `--dist loadfile` gives out files in this order: all workers end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, then those of this folder, some of which are long as well."""

    def place(item: pytest.Item) -> int:
        name = item.nodeid.partition("/")[2].partition("/")[0]
        if name in _LONGEST:
            return _LONGEST.index(name)
        return len(_LONGEST) + (not name.startswith("test_"))

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spares the garbage collector the ten thousand tests, which stay: a fifth of the time of what they call."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test marked `gpu` where there is no CUDA device."""
    if item.get_closest_marker("gpu") is not None and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def _only_marked_tests_use_the_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere replay takes the CPU on every machine: answers then do not depend on what it has."""
    if "torch" in sys.modules and request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's cache, in this process or in one that it starts."""
    os.environ["POSTMORTEM_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@dataclass(frozen=True)
class Called:
    """What a command line printed and returned."""

    code: int
    out: str
    err: str


@pytest.fixture
def postmortem(capsys: pytest.CaptureFixture[str]):
    """Calls ``postmortem ARGS…`` in this process -> Called."""
    from postmortem.cli.main import main

    def call(*args: object) -> Called:
        with pytest.raises(SystemExit) as stopped:
            main([str(a) for a in args])
        captured = capsys.readouterr()
        return Called(int(stopped.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def python():
    """Runs ``python ARGS…`` in a fresh process -> subprocess.CompletedProcess."""

    def call(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([_STARTUP, str(ROOT)])}
        given: dict[str, object] = {"env": env, "check": False, "timeout": 200, **options}
        return subprocess.run([sys.executable, *args], capture_output=True, text=True, **given)

    return call


@pytest.fixture(scope="session")
def sample_runs() -> Path:
    """The folder of sample runs that ships with the repository."""
    return ROOT / "sample_runs"


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, driven by playwright, for the tests of one file; skips them where there is none.

    Not for a whole session: while it is open, its event loop runs in this thread.
    """
    sync = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium on this machine")
    before = _children()
    driver = sync.sync_playwright().start()
    started = _children() - before  # Chromium ends with the driver that holds its pipe
    end = threading.Timer(_CLOSING, _kill, [started])
    try:
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        yield driver.chromium.launch(executable_path=program, args=arguments, timeout=60_000)
    finally:
        end.start()  # a driver that does not answer any more would be waited for without end
        driver.stop()
        end.cancel()


def _children() -> set[int]:
    """The processes that this one started; known on Linux only."""
    return {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def _kill(processes: set[int]) -> None:
    for pid in processes & _children():
        os.kill(pid, signal.SIGKILL)
