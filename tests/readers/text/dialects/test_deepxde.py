"""DeepXDE's lists of losses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

import postmortem
from postmortem.core.roles import is_total
from postmortem.readers.text.dialects.deepxde import DeepXDE
from postmortem.readers.text.lines.prefixes import NOTHING
from postmortem.readers.text.records.record import Row

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = """Using backend: pytorch
Other supported backends: tensorflow.compat.v1, tensorflow, jax, paddle.

Compiling model...
'compile' took 0.000230 s

Training model...

"""
AFTER = """
Best model at step 2000:
  train loss: 9.40e-02
  test loss: 9.50e-02
  test metric: [1.00e-02]

'train' took 118.231000 s
"""


def listed(numbers: list[float]) -> str:
    """As DeepXDE prints a list."""
    return "[" + ", ".join(f"{n:.2e}" for n in numbers) + "]"


def log_of(rows: list[tuple[int, list[float], list[float], list[float]]]) -> str:
    """The table of these rows, in columns of DeepXDE's widths."""
    width = len(rows[0][1]) * 10 + 4
    lines = [f"{'Step':<10}{'Train loss':<{width}}{'Test loss':<{width}}{'Test metric':<14}"]
    lines += [f"{s:<10}{listed(a):<{width}}{listed(b):<{width}}{listed(c):<14}" for s, a, b, c in rows]
    return "\n".join(lines) + "\n"


def losses(n: int, bad: float = 0.0) -> list[tuple[int, list[float], list[float], list[float]]]:
    """Rows of a training with two terms and one metric."""
    terms = [(3 / (i + 1) + (bad if i > n - 4 else 0), 1 / (i + 1)) for i in range(n)]
    return [(1000 * i, [a, b], [a * 1.1, b * 1.1], [a / 9]) for i, (a, b) in enumerate(terms)]


def test_each_term_and_the_sum(tmp_path: Path) -> None:
    """The sum is the loss, the terms are its parts; the summary at the end adds nothing."""
    rows = losses(20)
    (tmp_path / "train.log").write_text(BEFORE + log_of(rows) + AFTER)
    run = postmortem.load(tmp_path / "train.log")
    assert run.roles == {
        "train loss": "loss", "train loss/1": "loss", "train loss/2": "loss",
        "test loss": "val_loss", "test loss/1": "val_loss", "test loss/2": "val_loss", "test metric": None,
    }  # fmt: skip
    assert [is_total(tag) for tag in ("train loss", "train loss/1", "test loss/2")] == [True, False, False]
    by_tag = {tag: run.frame[run.frame.tag == tag] for tag in run.roles}
    for tag, of in {
        "train loss/2": lambda r: r[1][1],
        "test loss/1": lambda r: r[2][0],
        "test metric": lambda r: r[3][0],
    }.items():
        assert by_tag[tag].value.tolist() == [float(f"{of(r):.2e}") for r in rows]
    assert by_tag["train loss"].step.tolist() == [r[0] for r in rows]
    assert all(math.isclose(v, sum(r[1]), rel_tol=0.01) for v, r in zip(by_tag["train loss"].value, rows, strict=True))


def test_a_term_that_becomes_nan_makes_the_loss_nan(tmp_path: Path) -> None:
    """The finding is at the first step with a NaN, and a lost head of the log changes nothing."""
    table = log_of(losses(20, bad=math.nan))
    for text in (BEFORE + table, table.split("\n", 3)[3]):
        (tmp_path / "train.log").write_text(text)
        (report,) = postmortem.scan(tmp_path / "train.log").runs
        assert report.verdict == "failed"
        assert ("nan-onset", "train loss", 17000) in {(f.name, f.tag, f.step) for f in report.findings}


def test_one_term_and_no_metric(tmp_path: Path) -> None:
    """A single term is the loss itself."""
    rows = [(100 * i, [1 / (i + 1)], [2 / (i + 1)], []) for i in range(12)]
    (tmp_path / "train.log").write_text(log_of(rows))
    run = postmortem.load(tmp_path / "train.log")
    assert run.roles == {"train loss": "loss", "test loss": "val_loss"}
    assert run.frame.step.max() == 1100


def test_best_losses_of_another_program_are_read(tmp_path: Path) -> None:
    """Indented lines are passed over only below DeepXDE's own line."""
    (tmp_path / "train.log").write_text("".join(f"step {i}\n  train loss: {9 - i}\n" for i in range(8)))
    assert postmortem.load(tmp_path / "train.log").n_points == 8


@given(
    st.integers(0, 10**9 - 1),  # ten digits fill the column
    *(st.lists(st.floats(allow_nan=False, width=32), min_size=n, max_size=5) for n in (1, 0, 0)),
)
def test_every_number_of_a_row_is_read(step: int, train: list[float], test: list[float], metrics: list[float]) -> None:
    """Each term and metric is a value, and the sums stand before them."""
    record = DeepXDE().parse(Row(f"{step:<10}{listed(train)}    {listed(test)}    {listed(metrics)}    ", NOTHING))
    assert record is not None
    assert record.step == step
    terms = {v.tag: v.number for v in record.values}
    for name, numbers in (("train loss", train), ("test loss", test)):
        read = [float(f"{n:.2e}") for n in numbers]
        if len(read) > 1:
            assert [terms[f"{name}/{i}"] for i in range(1, len(read) + 1)] == read
        if read and all(map(math.isfinite, read)):
            assert terms[name] == sum(read)
    assert sum(tag.startswith("test metric") for tag in terms) == len(metrics)
