"""A plugin with a fault costs what it would have said: the scan goes on and reports the fault in one line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import postmortem
from postmortem.core.model import Finding
from postmortem.detectors import DETECTORS
from postmortem.diagnoses import CAUSES
from postmortem.readers import READERS

LOG = "".join(f"step {step} loss {'nan' if step > 80 else 2 - step / 100}\n" for step in range(100))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a run whose loss becomes NaN."""
    (tmp_path / "train.log").write_text(LOG)
    return tmp_path


def faults(folder: Path) -> list[str]:
    """The faults of plugins that a scan reports; the run is judged without them."""
    report = postmortem.scan(folder)
    (run,) = report.runs
    assert (run.verdict, run.findings[0].name) == ("failed", "nan-onset")
    return [problem.what for problem in (*report.problems, *run.problems)]


class Quiet:
    """A detector that needs nothing."""

    code, name, severity = "ZZZ001", "quiet", "warning"

    def __init__(self, options: Any) -> None:
        pass

    def detect(self, view: Any) -> Any:
        return []


class WithoutOptions(Quiet):
    pass


class Optioned(Quiet):
    @dataclass(frozen=True, kw_only=True)
    class Options:
        """None."""


class Unmade(Optioned):
    def __init__(self, options: Any) -> None:
        raise RuntimeError("no model of this run")


class Exits(Optioned):
    def detect(self, view: Any) -> Any:
        raise SystemExit(7)


class Talks(Optioned):
    def detect(self, view: Any) -> Any:
        return ["the loss is odd"]


class Exaggerates(Optioned):
    def detect(self, view: Any) -> Any:
        return [Finding(id="", code="ZZZ001", name="quiet", severity="catastrophe", message="")]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plugin", "what"),
    [
        (WithoutOptions, "AttributeError"),
        (Unmade, "RuntimeError: no model of this run"),
        (Exits, "SystemExit: 7"),
        (Talks, "TypeError: 'the loss is odd' is not a Finding"),
        (Exaggerates, "ValueError: unknown severity 'catastrophe'"),
    ],
)
def test_a_faulty_detector(log: Path, monkeypatch: pytest.MonkeyPatch, plugin: type, what: str) -> None:
    """One that cannot be made, that ends the process or answers nonsense."""
    list(DETECTORS)
    monkeypatch.setitem(DETECTORS._items, "ZZZ001", plugin)
    (fault,) = faults(log)
    assert fault.startswith(f"ZZZ001: the detector failed: {what}")


@pytest.mark.parametrize("story", ["a text", SystemExit(7)])
def test_a_faulty_diagnosis(log: Path, monkeypatch: pytest.MonkeyPatch, story: Any) -> None:
    """One whose story is no Diagnosis, or that ends the process."""

    class Cause:
        name, priority = "odd", 0

        @staticmethod
        def diagnose(view: Any, findings: Any) -> Any:
            if isinstance(story, BaseException):
                raise story
            return story

    list(CAUSES)
    monkeypatch.setitem(CAUSES._items, "000 odd", Cause)
    (fault,) = faults(log)
    assert fault.startswith("odd: the diagnosis failed: ")


class Claims:
    """A reader that fails when it is asked."""

    kind, priority = "odd", 0

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        raise RuntimeError("claims")


class Claimless:
    """A reader that cannot be asked."""

    kind, priority = "odd", 0


@pytest.mark.parametrize(
    ("plugin", "what"),
    [
        (Claims, "RuntimeError: claims"),
        (Claimless, "AttributeError: type object 'Claimless' has no attribute 'claims'"),
    ],
)
def test_a_faulty_claim(log: Path, monkeypatch: pytest.MonkeyPatch, plugin: type, what: str) -> None:
    """Another reader takes the files; the fault is reported once, not for each file."""
    (log / "other.log").write_text("nothing\n")
    list(READERS)
    monkeypatch.setitem(READERS._items, "000 odd", plugin)
    report = postmortem.scan(log)
    assert [problem.what.partition(" (")[0] for problem in report.problems] == [f"the odd reader failed: {what}"]
    assert report["train"].verdict == "failed"


@pytest.mark.parametrize("answer", [None, "text", SystemExit(7)])
def test_a_faulty_reading(log: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """A reader that gives no Reading, or ends the process, costs its files."""

    class Reader:
        kind, priority = "odd", 0

        @staticmethod
        def claims(path: Path, head: bytes) -> bool:
            return path.name == "own.odd"

        @staticmethod
        def home(path: Path) -> Any:
            raise RuntimeError("home")

        @staticmethod
        def read(path: Path) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

    (log / "own.odd").write_text("1 2 3\n")
    list(READERS)
    monkeypatch.setitem(READERS._items, "000 odd", Reader)
    homeless, unread = faults(log)
    assert homeless.startswith("the odd reader failed: RuntimeError: home")
    assert unread.startswith("the odd reader failed: ")
