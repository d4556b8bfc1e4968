"""How long a training was to be, and how far its log shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import postmortem
from postmortem.readers.text import read_text

if TYPE_CHECKING:
    from pathlib import Path


def bars(total: int, first: int, last: int, head: str = "", values: str = ", loss=0.4") -> str:
    return (
        "\r".join(
            f"{head}{100 * n // total}%|##  | {n}/{total} [00:01<00:09, 3.40it/s{values}]"
            for n in range(first, last + 1)
        )
        + "\n"
    )


def batches(epochs: int, total: int, every: int, last: tuple[int, int], head: str = "Epoch {e} [{n}/{total}]") -> str:
    """Lines of all epochs up to the last one printed, (epoch, position)."""
    rows = [(e, n) for e in range(1, epochs + 1) for n in range(every, total + 1, every) if (e, n) <= last]
    return "".join(head.format(e=e, n=n, total=total) + f" loss {2 / (e + n / total):.4f}\n" for e, n in rows)


DEAD: dict[str, tuple[str, tuple[str, float, float]]] = {
    "counter": (
        "".join(f"iteration {i}/1000 | loss {3 - i / 900:.3f}\n" for i in range(10, 410, 10)),
        ("step", 400, 1000),
    ),
    "epochs": ("".join(f"Epoch {e}/50, loss: {3 - e / 90:.3f}\n" for e in range(1, 13)), ("epoch", 12, 50)),
    "batches of epochs": (batches(5, 200, 10, (3, 100), "Epoch [{e}/5][{n}/{total}]"), ("epoch", 2.5, 5)),
    "announced epochs": (
        "workflow: [('train', 1)], max: 12 epochs\n" + batches(12, 500, 50, (2, 250), "Epoch [{e}][{n}/{total}]"),
        ("epoch", 1.5, 12),
    ),
    "announced in a sentence": (
        "Scheduled epochs: 20. LR stepped per epoch.\n" + batches(7, 120, 10, (7, 70)),
        ("epoch", 6 + 70 / 120, 20),
    ),
    "announced steps": (
        "  Total optimization steps = 1,152\n" + "".join(f"step {i}: loss {3 - i / 900}\n" for i in range(0, 300, 20)),
        ("step", 280, 1152),
    ),
    "arguments": (
        "Namespace(lr=0.1, epochs=30, workers=4)\n" + batches(30, 100, 10, (9, 50), "Epoch {e} [{n}/{total}]"),
        ("epoch", 8.5, 30),
    ),
    "a bar beside dicts": (
        "".join(
            bars(200, n - 9, n, values="") + f"{{'loss': {3 - n / 99:.3f}, 'epoch': {n / 100}}}\n"
            for n in range(10, 101, 10)
        ),
        ("step", 100, 200),
    ),
}


@pytest.mark.parametrize(("text", "plan"), DEAD.values(), ids=DEAD)
def test_a_run_that_stops_in_the_middle(text: str, plan: tuple[str, float, float], tmp_path: Path) -> None:
    """The plan and how much of it was done are read, and a scan reports that the run died silently."""
    path = tmp_path / "train.log"
    path.write_text(text)
    found: dict[str, Any] = read_text(path).facts["plan"]
    assert (found["unit"], found["done"], found["planned"]) == pytest.approx(plan)
    (run,) = postmortem.scan(path).runs
    (finding,) = [f for f in run.findings if f.name == "silent-death"]
    assert finding.severity == "warning"
    assert f"of {plan[2]:g}" in finding.message


ALIVE: dict[str, str] = {
    "all steps": "".join(f"iteration {i}/1000 | loss {3 - i / 900:.3f}\n" for i in range(100, 1001, 100)),
    "printed every 300 of 1000 steps": "".join(
        f"iteration {i}/1000 | loss {3 - i / 900:.3f}\n" for i in range(300, 901, 300)
    ),
    "all epochs": "".join(f"Epoch {e}/12, loss: {3 - e / 90:.3f}\n" for e in range(1, 13)),
    "all epochs, counted from 0": "".join(f"Epoch {e}/11, loss: {3 - e / 90:.3f}\n" for e in range(12)),
    "the last batches are not printed": batches(5, 391, 50, (5, 350), "Epoch [{e}/5][{n}/{total}]"),
    "epochs of nobody knows how many": batches(3, 200, 10, (3, 200), "Epoch {e} [{n}/{total}]"),
    "in one of nobody knows how many": batches(3, 200, 10, (3, 100), "Epoch {e} [{n}/{total}]"),
    "early stopping": "".join(f"Epoch {e}/50, loss: {3 - e / 90:.3f}\n" for e in range(1, 13))
    + "Early stopping triggered after 12 epochs\n",
    "early stopping of Keras": "".join(f"Epoch {e}/50, loss: {3 - e / 90:.3f}\n" for e in range(1, 13))
    + "Epoch 00012: early stopping\n",
    "an evaluation's bar at the end": "".join(f"step {i} loss {3 - i / 900}\n" for i in range(0, 200, 20))
    + bars(100, 1, 40, "Validation: "),
    "data preparation": bars(1000, 1, 400, "Map (num_proc=8): ", "")
    + "".join(f"step {i} loss {3 - i / 900}\n" for i in range(0, 200, 20)),
    "a fraction of epochs": "epochs:0.12 total_steps:40\n"
    + "".join(f"step {i} loss {3 - i / 900}\n" for i in range(0, 200, 20)),
    "lengths of texts": "Min: 112, Max: 1964\n" + "".join(f"step {i} loss {3 - i / 900}\n" for i in range(0, 200, 20)),
    "warm-up": "warmup_epochs=5 lr_decay_steps=100000\n"
    + "".join(f"Epoch {e} loss: {3 - e / 90:.3f}\n" for e in range(1, 4)),
    "more than was announced": "max_train_steps=100\n"
    + "".join(f"step {i} loss {3 - i / 900}\n" for i in range(0, 500, 20)),
    "an evaluation of earlier epochs": "".join(f"epoch: {e}/20 loss: {3 - e / 90:.3f} acc: 0.5\n" for e in range(1, 21))
    + "".join(f"load model epoch {e}\nepoch: {e}/20 acc: 0.{e}\n" for e in range(15, 19)),
    "completed": "".join(f"iteration {i}/1000 | loss {3 - i / 900:.3f}\n" for i in range(10, 410, 10))
    + "Training completed in 3:01\n",
    "hits of a test": "".join(
        f"Epoch {e} loss: {3 - e / 90:.3f}\nTest accuracy: 4100/10000 (41%)\n" for e in range(1, 4)
    ),
}


@pytest.mark.parametrize("text", ALIVE.values(), ids=ALIVE)
def test_a_run_that_went_as_planned(text: str, tmp_path: Path) -> None:
    """Runs that did all they were to do, were stopped early, or whose plan is not known, are no silent deaths."""
    path = tmp_path / "train.log"
    path.write_text(text)
    (run,) = postmortem.scan(path).runs
    assert not [f for f in run.findings if f.name == "silent-death"], read_text(path).facts


def test_the_number_of_iterations_among_settings_is_no_step(tmp_path: Path) -> None:
    """A program that fails before its first step has no last step, whatever its settings print."""
    path = tmp_path / "train.log"
    settings = "batch_size:512 iterations:500 warmup_steps:20 seed:7\n"
    path.write_text(settings + "Traceback (most recent call last):\nRuntimeError: no kernel\n")
    (run,) = postmortem.scan(path).runs
    assert [f.step for f in run.findings if f.name == "crash"] == [None]
