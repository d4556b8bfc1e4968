"""A plugin that raises costs what it would have added, and a line names it; the rest of the command goes on."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import postmortem
from postmortem import api
from postmortem.checkpoints.formats import FORMATS, CheckpointFormat
from postmortem.core.model import Problem
from postmortem.core.registry import Registry, collected_faults, report_fault
from postmortem.readers import READERS
from postmortem.readers.text.dialects import DIALECTS, Dialect
from postmortem.reporters import REPORTERS, reporter

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = "".join(f"step {step} loss {2 - 0.01 * step:.3f}\n" for step in range(60))


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Callable[[Registry[Any], Any], Any]:
    """plug(registry, plugin) registers `plugin` for one test."""

    def register(registry: Registry[Any], plugin: Any) -> Any:
        monkeypatch.setattr(registry, "_items", {registry.key(item): item for item in registry})
        return registry.register(plugin)

    return register


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with two logs."""
    for name in ("a.out", "b.out"):
        (tmp_path / "runs" / name[0]).mkdir(parents=True)
        (tmp_path / "runs" / name[0] / name).write_text(LOG)
    return tmp_path / "runs"


class Reader:
    """Claims nothing."""

    kind: ClassVar[str] = "faulty"
    priority: ClassVar[int] = 1

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        return False


def test_a_reader_that_cannot_say_what_it_claims(logs: Path, plug: Any, postmortem: Any) -> None:
    """Other readers read the files; the report names the reader, its error and what it costs, once for all files."""

    class Claims(Reader):
        @staticmethod
        def claims(path: Path, head: bytes) -> bool:
            raise ValueError("no such magic")

    plug(READERS, Claims)
    report = api.scan(logs)
    assert [len(run.run.frame) for run in report.runs if run.run] == [60, 60]
    (problem,) = report.problems
    assert problem.what.startswith("the faulty reader failed: ValueError: no such magic (test_faulty")
    called = postmortem("scan", logs)
    assert "the faulty reader failed" in " ".join(called.out.split())


def test_a_reader_that_cannot_name_the_home_of_a_run(tmp_path: Path, plug: Any) -> None:
    """The file is grouped by what lies beside it."""

    class Home(Reader):
        @staticmethod
        def claims(path: Path, head: bytes) -> bool:
            return path.suffix == ".homeless"

        @staticmethod
        def home(path: Path) -> Path:
            return Path(path.name.split("=")[1])

        @staticmethod
        def read(path: Path) -> Any:
            return None

    plug(READERS, Home)
    (tmp_path / "x.homeless").write_text("x")
    (tmp_path / "train.out").write_text(LOG)
    report = api.scan(tmp_path)
    (run,) = report.runs
    assert {s.kind: s.points for s in run.sources} == {"faulty": 0, "text": 60}
    assert [p.what.partition(" (")[0] for p in report.problems] == [
        "the faulty reader failed: IndexError: list index out of range"
    ]
    assert any("None is not a Reading" in p.what for p in run.problems)


@pytest.mark.parametrize("method", ["sniff", "parse"])
def test_a_dialect_that_raises(tmp_path: Path, plug: Any, method: str) -> None:
    """The rows go to the other dialects; the problem has the line, and the dialect is not asked again."""
    asked = []

    class Faulty(Dialect):
        """Raises."""

        name = "faulty"
        priority = 1

        def sniff(self, sample: str) -> bool:
            return not self.fail("sniff")

        def parse(self, row: Any) -> None:
            self.fail("parse")

        def fail(self, where: str) -> bool:
            asked.append(where)
            if where == method:
                raise KeyError("loss")
            return False

    plug(DIALECTS, Faulty)
    (tmp_path / "train.out").write_text(LOG)
    run = postmortem.load(tmp_path)
    assert list(run.frame["step"]) == list(range(60))
    (problem,) = run.problems
    assert problem.what.startswith(f"the dialect faulty failed in {method}: KeyError: 'loss'")
    assert (problem.path, problem.lost) == (
        str(tmp_path / "train.out"),
        "what only this dialect reads from here on",
    )
    assert asked.count(method) == 1


def test_a_reporter_that_raises(logs: Path, plug: Any, postmortem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names it, not an internal error of the package."""
    monkeypatch.setattr(REPORTERS, "_items", {REPORTERS.key(item): item for item in REPORTERS})

    @reporter("faulty")
    def render(report: Any, options: Any) -> str:
        raise ZeroDivisionError("no runs")

    called = postmortem("scan", logs, "--format", "faulty")
    assert called.code == 2
    assert "the format faulty failed in rendering the report: ZeroDivisionError: no runs" in called.err
    assert "internal error" not in called.err


@pytest.mark.torch
@pytest.mark.parametrize("method", ["claims", "is_folder"])
def test_a_checkpoint_format_that_raises(tmp_path: Path, plug: Any, postmortem: Any, method: str) -> None:
    """Checkpoints of other formats are read and good; each command and the Python call name the format at fault."""
    torch = pytest.importorskip("torch")

    def fail(_: Any) -> bool:
        raise RuntimeError("no licence")

    plug(FORMATS, type("Faulty", (CheckpointFormat,), {"name": "faulty", "priority": 1, method: staticmethod(fail)}))
    if method == "is_folder":
        FORMATS["faulty"].claims = staticmethod(lambda path: False)  # type: ignore[method-assign]
    (tmp_path / "train.out").write_text(LOG.replace("loss 1.410", "loss nan"))
    torch.save({"w": torch.ones(3)}, tmp_path / "ckpt_7.pt")
    fault = f"the checkpoint format faulty failed in {method}: RuntimeError: no licence"
    called = postmortem("checkpoints", tmp_path)
    assert called.code == 0
    assert "UNREADABLE" not in called.out
    assert called.err.count(fault) == 1
    for _ in range(2):  # what is remembered of a checkpoint does not hide the fault
        (run,) = api.scan(tmp_path).runs
        assert [c.finite for c in run.checkpoints] == [True]
        assert [p.what.partition(" (")[0] for p in run.problems] == [fault]
    with pytest.warns(RuntimeWarning, match=fault):
        assert [h.finite for h in api.checkpoints(tmp_path)] == [True]


def test_faults_are_collected_once_and_in_outer_contexts() -> None:
    """Each line once; what an inner context collects, an outer one has as well; without one a fault is a warning."""
    fault = Problem(path="x", what="the reader x failed", lost="its files")
    with collected_faults() as outer:
        with collected_faults() as inner:
            report_fault(fault)
            report_fault(fault)
        report_fault(fault)
    assert inner == outer == [fault]
    with pytest.warns(RuntimeWarning, match="the reader x failed; lost: its files"):
        report_fault(fault)


def test_every_broken_plugin_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Path, postmortem: Any
) -> None:
    """A plugin of any kind that fails to import: `doctor` and `broken_plugins` list it, commands mention what they use.

    A scan imports no torch for that."""
    pytest.importorskip("torch")
    kinds = api.registries()
    assert all(list(registry) for registry in kinds.values())  # their modules register once only
    groups = {registry.group: kind for kind, registry in kinds.items()}
    monkeypatch.setattr(
        "postmortem.core.registry.entry_points",
        lambda group: [EntryPoint(f"torn {groups[group]}", "a_module_that_does_not_exist", group)],
    )
    for registry in kinds.values():
        for name, value in (("_items", dict(registry._items)), ("_broken", []), ("_loaded", False)):
            monkeypatch.setattr(registry, name, value)
    assert [b.where.split(" = ")[0] for b in api.broken_plugins()] == [f"torn {kind}" for kind in kinds]
    doctor = postmortem("doctor")
    assert doctor.code == 2
    assert [line.split(": ")[0] for line in doctor.out.splitlines() if line.startswith("broken")] == [
        f"broken plugin ({kind})" for kind in kinds
    ]
    used = {
        ("scan", logs): set(api.OF_A_SCAN),
        ("show", logs / "a"): {"readers", "dialects", "checkpoint formats"},
        ("checkpoints", logs): {"checkpoint formats"},
        ("replay", logs / "a"): set(kinds),
    }
    for command, mentioned in used.items():
        err = postmortem(*command).err
        assert {kind for kind in kinds if f"failed to load: torn {kind} =" in err} == mentioned


def test_plugins_of_a_scan_are_checked_without_torch(python: Any) -> None:
    """Looking for broken plugins of a scan imports no torch."""
    code = "import sys; from postmortem import api; api.broken_plugins(*api.OF_A_SCAN); print('torch' in sys.modules)"
    assert python("-c", code).stdout.strip() == "False"
