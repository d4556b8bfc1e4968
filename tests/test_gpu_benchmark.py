"""`make gpu`: one table whatever happens in a part, one line where there is no device. Here the CPU is the device."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
SCRIPT = str(ROOT / "benchmarks" / "gpu.py")
CASES = ROOT / "tests" / "replay" / "cases"

pytestmark = pytest.mark.torch


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/gpu.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "gpu", raising=False)
    import gpu

    return gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so(python: Any) -> None:
    """No device is no failure: one line, exit code 0."""
    ran = python(SCRIPT)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"no CUDA device: torch {torch.__version__} sees none; nothing was run\n"


def test_a_part_that_hangs_leaves_the_rows_of_the_others(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What a part did before its time was up is in the table, with a row about the limit; the parts after it run."""
    right = {"case": "quick", "right": {"located": True, "all": True}, "seconds": 0.5}
    code = {
        "zoo": f"import time; print('{{\"total\": 2}}'); print({json.dumps(right)!r}, flush=True); time.sleep(600)",
        "cases": "print('{\"total\": 0}')",
    }
    monkeypatch.setattr(gpu, "command", lambda part, _: [sys.executable, "-S", "-c", code[part]])
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", "--device", "cpu", "--parts", "zoo,cases", "--limit", "5", "--cases", str(tmp_path)]
    )
    assert gpu.main() == 1
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row for row in rows if " seconds " not in row and " time limit " not in row] == [
        "! zoo 1 of 2 cases located 1/1, every field 1/1, healthy blamed 0/0",
        "zoo slowest case quick: 0.5 s",
        "cases 0 of 0 cases located 0/0, every field 0/0, healthy blamed 0/0",
    ]
    assert [row.partition(" ended ")[0] for row in rows if " time limit " in row] == ["! zoo time limit"]


def test_cases_and_synchronisations_on_a_cpu(python: Any, tmp_path: Path) -> None:
    """Rows of a right case, of one that raises and of one with another truth; a step on a CPU waits for nothing."""
    right = CASES / "case_chunked_masked_mean.py"
    shutil.copy(right, tmp_path / "case_a_right.py")
    (tmp_path / "case_b_raises.py").write_text("raise ImportError('no such thing')\n")
    (tmp_path / "case_c_wrong.py").write_text(right.read_text().replace('"phase": "forward"', '"phase": "optimizer"'))
    ran = python(SCRIPT, "--device", "cpu", "--parts", "syncs,cases", "--sizes", "tiny", "--cases", str(tmp_path))
    text = " ".join(ran.stdout.split())
    assert ran.returncode == 1
    assert text.startswith("cpu, torch ")
    assert "! cases 3 of 3 cases located 1/3, every field 1/3, healthy blamed 0/0" in text
    assert "! cases b_raises ImportError: no such thing" in text
    assert "! cases c_wrong wrong: phase" in text
    assert "! cases a_right" not in text
    assert "syncs tiny, traced +0 blocking calls, +0 copies to the host, +" in text
    assert "! syncs" not in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_marked_tests_have_a_row(python: Any) -> None:
    """The chain on the device is run by pytest; where there is no CUDA its tests are skipped, and counted."""
    ran = python(SCRIPT, "--device", "cpu", "--parts", "chain")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[1].split() == ["chain", "tests", "0", "passed,", "0", "failed,", "5", "skipped"]


def test_what_the_profiler_counts(gpu: Any) -> None:
    """Calls that block the host and copies to it are counted; launches and copies to the device are neither."""
    names = [
        "cudaLaunchKernel",
        "cudaStreamSynchronize",
        "cudaMemcpyAsync",
        "Memcpy DtoH (Device -> Pageable)",
        "aten::add",
    ]
    names += [
        "Memcpy HtoD (Pageable -> Device)",
        "cuStreamSynchronize",
        "aten::_local_scalar_dense",
        "Memcpy DtoH (Device -> Pinned)",
    ]
    assert gpu.counted(names) == {"blocking": 2, "to_host": 2, "reads": 1}


def test_outcomes_are_read_from_pytest(gpu: Any) -> None:
    """Each test counts once, with its worst outcome; the one that was running when time was up counts as none."""
    output = (
        "tests/a.py::test_one[x y] PASSED [ 10%]\ntests/a.py::test_two FAILED\ntests/b.py::test_three PASSED\n"
        "tests/b.py::test_three ERROR\ntests/b.py::test_four SKIPPED (needs)\ntests/b.py::test_five "
    )
    rows = gpu.rows_of_tests("tests", gpu.Ran(output, finished=False, code=-9, seconds=1.0))
    assert [(row.result, row.ok) for row in rows] == [
        ("1 passed, 2 failed, 1 skipped", False),
        ("test_two, test_three", False),
    ]
    assert not gpu.rows_of_tests("tests", gpu.Ran("", finished=True, code=5, seconds=1.0))[-1].ok
