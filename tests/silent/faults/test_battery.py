"""Every silent fault is found in its programs, at its line, and healthy ones are not blamed by any."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from postmortem.silent.faults import FAULTS
from postmortem.silent.judge import judge
from postmortem.silent.look import Look, read
from postmortem.silent.measures import measures
from postmortem.silent.trials import outcome
from tests.cases import ROOT, Case, cases

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the programs are run in forked processes"),
]
CASES = cases(FAULTS, "blamed") + cases(FAULTS, "quiet")


TRIED = {case.of.name: case for case in reversed(CASES) if case.kind == "blamed" and case.of.trial is not None}
"""Fault -> the first program with it that a trial is made of."""
CURED = {
    "clip-before-unscale",
    "double-sigmoid",
    "dropout-too-high",
    "frozen-parameters-in-optimizer",
    "gradient-clip-too-small",
    "identical-worker-randomness",
    "learning-rate-zero",
    "loss-broadcast",
    "loss-not-scaled",
    "missing-zero-grad",
    "optimizer-stale-parameters",
    "relu-before-loss",
    "replicas-not-synchronised",
    "replicas-start-different",
    "same-batch-repeated",
    "unregistered-submodules",
    "weight-decay-too-high",
}
"""Whose loss ends clearly lower with the change, in the few steps of this program, or which is not found any more."""


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of all cases, after they were run under observation."""
    folder = tmp_path_factory.mktemp("programs")
    for case in CASES:
        (folder / str(case)).mkdir()
        (folder / str(case) / "train.py").write_text(inspect.cleandoc(case.make()) + "\n")
    for name, case in TRIED.items():
        (folder / f"trial-{name}").mkdir()
        (folder / f"trial-{name}" / "train.py").write_text(inspect.cleandoc(case.make()) + "\n")
        (folder / f"trial-{name}" / "trial").write_text(name)
    program = str(Path(__file__).with_name("programs.py"))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, program, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    return folder


def looks(observed: Path, case: Case) -> list[Look]:
    return read(observed / str(case) / "silent")


@pytest.mark.parametrize("case", [c for c in CASES if c.kind == "blamed"], ids=str)
def test_the_fault_is_found_at_its_line(case: Case, observed: Path) -> None:
    """It alone, with its evidence."""
    blames, checks = judge(looks(observed, case))
    assert [(b.name, b.family) for b in blames] == [(case.of.name, case.of.family)]
    assert blames[0].file == str(observed / str(case) / "train.py")
    lines = Path(blames[0].file).read_text().splitlines()
    assert case.options["at"] in lines[(blames[0].line or 0) - 1], blames[0]
    assert blames[0].evidence
    assert blames[0].confirm
    assert [c.name for c in checks if c.status == "not ok"] == [case.of.name]


@pytest.mark.parametrize("case", [c for c in CASES if c.kind == "quiet"], ids=str)
def test_healthy_programs_are_not_blamed(case: Case, observed: Path) -> None:
    """By this fault nor by another one; and this one was able to judge. What is ok has its numbers."""
    blames, checks = judge(looks(observed, case))
    assert blames == []
    assert [c.detail for c in checks if c.status == "ok" and not re.search(r"\d", c.detail)] == []
    status = {c.name: c.status for c in checks}
    assert status[case.of.name] == case.options.get("status", "ok")


@pytest.mark.parametrize("name", TRIED)
def test_a_trial_changes_the_program_that_it_is_for(name: str, observed: Path) -> None:
    """It has an effect, the program runs to its end, and whether the loss ends lower is told."""
    folder, case = observed / f"trial-{name}", TRIED[name]
    without, changed = looks(observed, case), read(folder / "silent")
    again = next(check for check in judge(changed)[1] if check.name == name)
    told = outcome(case.of.trial, without, changed, used=(folder / "used").exists(), again=again)
    assert (folder / "used").exists()
    assert max(look.steps for look in changed) == max(look.steps for look in without)
    assert bool(told["cured"]) == (name in CURED), told


def test_costs_are_measured(observed: Path) -> None:
    """Time, memory, types and seeds of any training."""
    program = next(case for case in CASES if str(case) == "missing-zero-grad-cleared_after_the_step")
    lines = {line.name: line for line in measures(looks(observed, program))}
    assert {name: line.status for name, line in lines.items()} == {
        "step-time": "ok",
        "memory": "ok",
        "types-and-devices": "ok",
        "trained-parameters": "ok",
        "scheduler-order": "not checked",
        "seeds": "ok",
    }
    assert "forward" in lines["step-time"].detail
    assert "activations" in lines["memory"].detail
    assert lines["types-and-devices"].detail.endswith("float32 on cpu")


@pytest.mark.parametrize("kind", list(FAULTS), ids=lambda k: k.name)
def test_every_fault_has_its_page_and_code(kind: Any) -> None:
    """What `explain` shows, and a code of its own."""
    page = inspect.getdoc(kind) or ""
    assert all(part in page for part in ("How it is found:", "What to do:", "How to confirm:"))
    assert [k.name for k in FAULTS if k.code == kind.code] == [kind.name]
