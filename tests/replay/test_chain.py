"""The whole chain as it is typed: `scan` names the last good checkpoint and a command; the command, as printed, names
the culprit."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from postmortem.cli.main import main
from tests import warm

pytestmark = pytest.mark.torch

RUNS = Path(__file__).parent / "runs"


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """trained(name, device) -> the folder of a run, with its recipe beside it; trained once on each device."""
    made: dict[tuple[str, str], Path] = {}

    def train(name: str, device: str = "cpu") -> Path:
        if (name, device) not in made:
            folder = tmp_path_factory.mktemp("chain")
            shutil.copy(RUNS / "common.py", folder)
            shutil.copy(RUNS / f"{name}.py", folder / "recipe.py")
            code = f"import recipe; recipe.train('run', device={device!r})"
            if device == "cpu":
                quiet = f"import warnings; warnings.simplefilter('ignore'); {code}"
                assert warm.run("-c", quiet, cwd=folder).returncode == 0
            else:  # what a process knows of its devices does not outlive a fork
                subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=folder, check=True, timeout=120)
            made[name, device] = folder / "run"
        return made[name, device]

    return train


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    with pytest.raises(SystemExit):
        main([*args, "--format", "json"])
    return json.loads(capsys.readouterr().out)


def culprit_line(name: str) -> int | None:
    lines = (RUNS / f"{name}.py").read_text().splitlines()
    return next((i for i, line in enumerate(lines, 1) if line.endswith("# CULPRIT")), None)


CASES = [
    # name, last good checkpoint, step, phase, module, op, samples, what cures
    ("masked_trainer", "checkpoint-15", 23, "forward", "rate", "div", [2], {"drop_sample", "eps"}),
    ("last_batch", "last.pt", 29, "forward", "scale", "std", None, set()),
    ("logs_apart", "weights_29.pth", 33, "forward", "where", "div", [2], {"drop_sample", "eps"}),
    ("thawed_adapter", "step-20", 21, "optimizer", "2.down", "addcdiv", None, {"eps"}),
    ("epochs", "epoch_020.pt", 24, "forward", "mean", "div", None, {"eps"}),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "good", "step", "phase", "module", "op", "samples", "cures"), CASES, ids=[case[0] for case in CASES]
)
def test_chain(
    trained: Any,
    capsys: pytest.CaptureFixture[str],
    name: str,
    good: str,
    step: int,
    phase: str,
    module: str,
    op: str,
    samples: list[int] | None,
    cures: set[str],
    device: str,
) -> None:
    """From the log to phase, module, operator, line, samples and cures; every logged loss that can be compared is
    reproduced."""
    diagnosis = answer(capsys, "scan", str(trained(name, device)))["runs"][0]["diagnosis"]
    assert Path(diagnosis["last_good_checkpoint"]).name == good
    command = next(line for line in diagnosis["next"] if line.startswith("postmortem replay"))
    found = answer(capsys, *shlex.split(command)[1:], "--device", device)
    culprit = found["culprit"]
    assert (culprit["step"], culprit["phase"], culprit["module"], culprit["op"], culprit["samples"]) == (
        step,
        phase,
        module,
        op,
        samples,
    )
    assert culprit["line"] == culprit_line(name)
    assert {fix["name"] for fix in culprit["fixes"] if fix["cured"]} == cures
    assert found["fidelity"]["ok"]
    assert found["fidelity"]["compared"] > 0
    if device == "cpu":  # additions in parallel may differ in the last digit
        assert found["fidelity"]["exact"] == found["fidelity"]["compared"]


def test_answer_ends_with_what_to_do(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The report of a scan with --replay carries the culprit with its step, the repair that cured, and the command that
    tries the step again after it."""
    with pytest.raises(SystemExit):
        main(["scan", "--replay", str(trained("epochs"))])
    out = " ".join(capsys.readouterr().out.split())  # lines are broken where the path of the folder wants it
    assert "forward-op at step 24: operator div, module mean" in out
    assert "total / count[:, None].clamp(min=1e-06)" in out
    assert "after the change, replay the step again: $ postmortem replay" in out
