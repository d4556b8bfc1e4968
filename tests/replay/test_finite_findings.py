"""Runs whose values are all finite: the replay explains the jump, the growth or the standstill that the scan found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from postmortem import api
from tests import warm

if TYPE_CHECKING:
    from postmortem.core.culprit import ReplayResult

pytestmark = pytest.mark.torch
RUNS = Path(__file__).parent / "runs"


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Trains a run of `runs/` once and replays it, with options once more."""
    folder = tmp_path_factory.mktemp("finite")
    known: dict[str, ReplayResult] = {}

    def of(name: str, **options: Any) -> ReplayResult:
        if not (folder / name).exists():
            code = f"import {name}; {name}.train(r'{folder / name}')"
            assert warm.run("-c", code, cwd=RUNS).returncode == 0
        if options or name not in known:
            result = api.replay(folder / name, recipe=str(RUNS / f"{name}.py"), **options)
            if options:
                return result
            known[name] = result
        return known[name]

    return of


def test_the_sample_that_carries_a_jump(replayed: Any) -> None:
    """The step is that of the finding, the sample is named with its share and its loss, and the step without it is
    calm."""
    found = replayed("one_bad_label").culprit
    assert (found.cause, found.phase, found.step, found.samples) == ("outlier-sample", "data", 78, (5,))
    assert found.established == "cured"
    assert found.tensor["share"] > 0.95
    assert found.tensor["sample_losses"][0] > 1e5
    drop = next(f for f in found.fixes if f.name == "drop_sample")
    assert drop.cured
    assert drop.loss < 5
    assert any("of 16 carries" in line for line in found.how)


def test_clipping_is_measured_by_the_batches_after(replayed: Any) -> None:
    """The fixes that limit the update say what calm batches lose by the step, with the change and without it."""
    clip = next(f for f in replayed("one_bad_label").culprit.fixes if f.name == "clip_grad")
    assert "calm batches have a loss of" in clip.how


def test_the_step_that_was_asked_for(replayed: Any) -> None:
    """A step whose loss does not rise is not blamed."""
    found = replayed("one_bad_label", step=60).culprit
    assert (found.cause, found.phase) == ("none", "none")


@pytest.fixture
def shaken(tmp_path: Path) -> Any:
    """Trains a kind of `runs/shaken.py` and replays it."""

    def of(kind: str, **options: Any) -> ReplayResult:
        code = f"import shaken; shaken.train(r'{tmp_path}', '{kind}')"
        assert warm.run("-c", code, cwd=RUNS).returncode == 0
        return api.replay(tmp_path, recipe=f"{RUNS / 'shaken.py'}:{kind}", **options)

    return of


def test_the_layer_whose_gain_left_its_course(shaken: Any) -> None:
    """It is named with the step since when; its weights held keep the loss calm, all others held do not."""
    found = shaken("grows").culprit
    assert (found.cause, found.module, found.established) == ("exploding-layer", "2", "cured")
    assert found.tensor["since"] in (70, 71, 72)
    assert found.tensor["gain"] > found.tensor["usual_gain"]
    assert next(f for f in found.fixes if f.name == "hold_layer").cured
    assert found.code == 'return ((model(b["x"]).squeeze(-1) - b["y"]) ** 2).mean()'


def test_units_that_are_dead_from_the_start(shaken: Any) -> None:
    """A loss that never falls: the layer whose units are zero for every sample, and that it began so."""
    found = shaken("dead").culprit
    assert (found.cause, found.module, found.op) == ("dead-layer", "2", "relu")
    assert (found.tensor["kind"], found.tensor["since"]) == ("dead-units", 0)


def test_before_the_first_checkpoint(shaken: Any) -> None:
    """The recipe's seeded initial state is the start; the logged losses show that it is that of the training."""
    result = shaken("early", step=15)
    assert (result.checkpoint, result.fidelity.first_step, result.fidelity.ok) == ("", 0, True)
    assert "from the recipe's initial state" in result.culprit.how[0]
