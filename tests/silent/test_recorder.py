"""Which steps are looked at, and in which of them what costs more is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from postmortem.silent.observe import recorder as module
from postmortem.silent.observe.recorder import Recorder
from postmortem.silent.observe.watchers.activations import Activations


def looked_at(recorder: Recorder, steps: int) -> list[int]:
    """The steps in which what costs more is looked at."""
    found = []
    for step in range(steps):
        if not recorder.over and recorder.looking and recorder.sampled:
            found.append(step)
        recorder.stepped()
    return found


def test_the_last_steps_where_their_number_is_known(tmp_path: Path) -> None:
    """Wherever the windows of steps fall; of a program that ends by itself only those are looked at."""
    assert looked_at(Recorder(tmp_path, steps=370, seconds=None), 400)[-4:] == [289, 367, 368, 369]
    assert looked_at(Recorder(tmp_path, steps=None, seconds=None), 370)[-2:] == [223, 289]


@pytest.mark.parametrize(("each", "last"), [(0.1, [571, 572, 573]), (10.0, [3, 4, 7])])
def test_the_last_steps_where_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each: float, last: list[int]
) -> None:
    """Shortly before the end; where steps take long, it is not put off."""
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    recorder, found = Recorder(tmp_path, steps=None, seconds=60.0), []
    for step in range(1000):
        if not recorder.over and recorder.looking and recorder.sampled:
            found.append(step)
        now += each
        recorder.stepped()
    assert found[-3:] == last


def test_a_layer_that_has_just_died_is_looked_at_again(tmp_path: Path) -> None:
    """In the next step, once: after the last measured step but one it would pass otherwise."""
    recorder = Recorder(tmp_path, steps=None, seconds=None)
    watcher = Activations(recorder)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    sampled = []
    for step in range(300):
        if step == 200:
            layers[0].bias.data.fill_(-1e3)
        if recorder.looking and recorder.sampled:
            sampled.append(step)
            watcher.before_backward((layers(torch.randn(8, 4)).mean(),))
        recorder.stepped()
    assert sampled[-4:] == [172, 223, 224, 289]
