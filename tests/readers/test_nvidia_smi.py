"""What nvidia-smi logged beside a training."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import postmortem
from postmortem.readers.nvidia_smi import NvidiaSmi
from tests.readers.cases import usual_name

START = 1_700_000_000
HEADER = "timestamp, index, utilization.gpu [%], memory.used [MiB]"


@usual_name(NvidiaSmi)
def name_of_a_file() -> str:
    return "gpu.csv"


def monitor(folder: Path, *busy: tuple[int, int, int], units: bool = True) -> None:
    """Samples of one GPU every 30 s, of parts of (minutes, use, memory)."""
    lines, second = [HEADER], 0
    percent, mib = (" %", " MiB") if units else ("", "")
    for minutes, use, memory in busy:
        for _ in range(2 * minutes):
            moment = datetime.fromtimestamp(START + second, UTC)
            lines.append(f"{moment:%Y/%m/%d %H:%M:%S}.000, 0, {use}{percent}, {memory}{mib}")
            second += 30
    (folder / "gpu.csv").write_text("\n".join(lines) + "\n")


def training(folder: Path, name: str = "train.log", head: str = "") -> None:
    """Ten minutes of training that end without a word."""
    rows = (
        f"{datetime.fromtimestamp(START + 10 * i, UTC):%Y-%m-%d %H:%M:%S} step={10 * i} loss={2 / (1 + i):.4f}\n"
        for i in range(60)
    )
    (folder / name).write_text(head + "".join(rows))


@pytest.mark.parametrize(("head", "severity"), [("plan: 5000 updates\n", "error"), ("", "warning")])
@pytest.mark.parametrize("units", [True, False])
def test_idle_with_its_memory_in_use_is_a_hang(head: str, severity: str, units: bool, tmp_path: Path) -> None:
    """The process is there and does nothing; it is certain where the plan shows that there was more to do."""
    training(tmp_path, head=head)
    monitor(tmp_path, (10, 95, 12000), (5, 100, 12000), (120, 0, 12000), units=units)
    (run,) = postmortem.scan(tmp_path).runs
    found = next(f for f in run.findings if f.name == "hang")
    assert (found.severity, found.step) == (severity, 590)
    assert "120 minutes of gpu.csv" in found.message


@pytest.mark.parametrize(
    "after", [(120, 0, 300), (120, 90, 12000), (10, 0, 12000)], ids=["ended", "works on", "only minutes"]
)
def test_what_is_no_hang(after: tuple[int, int, int], tmp_path: Path) -> None:
    """Memory that was freed, a GPU that goes on computing, and a monitor that ends soon show none."""
    training(tmp_path)
    monitor(tmp_path, (10, 95, 12000), after)
    (run,) = postmortem.scan(tmp_path).runs
    assert (run.verdict, list(run.findings)) == ("healthy", [])
    assert [series.source for series in run.run.streams if len(series.points)] == ["text"]


def test_another_clock_proves_nothing(tmp_path: Path) -> None:
    """A monitor in local time seems to go on for hours after a log in UTC: that the GPUs are idle is what counts."""
    training(tmp_path)
    monitor(tmp_path, (300, 95, 12000), (5, 0, 12000))
    assert postmortem.scan(tmp_path).runs[0].verdict == "healthy"


def test_beside_two_runs_it_stands_alone(tmp_path: Path) -> None:
    """Nothing shows which run's GPU it is; what it holds can still be looked at."""
    training(tmp_path, "a.log")
    training(tmp_path, "b.log")
    monitor(tmp_path, (10, 95, 12000), (120, 0, 12000))
    runs = {run.name: run for run in postmortem.scan(tmp_path).runs}
    assert set(runs) == {"a", "b", "gpu.csv"}
    assert {f.name for run in runs.values() for f in run.findings} == set()
    assert set(runs["gpu.csv"].run.roles) == {"gpu0/busy", "gpu0/memory"}


def test_damage(tmp_path: Path) -> None:
    """A line without a time is told, a value that the driver does not know is none; a second header is no damage."""
    text = f"{HEADER}\n2023/11/14 22:13:20.000, 0, [N/A], 100 MiB\n{HEADER}\ngarbage\n"
    (tmp_path / "gpu.csv").write_text(text)
    reading = NvidiaSmi.read(tmp_path / "gpu.csv")
    assert [(p.line, p.what) for p in reading.problems] == [(4, "1 lines without a time, the first of them here")]
    assert reading.points.tags == ["gpu0/memory"]
    assert reading.started == START
