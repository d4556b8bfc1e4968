"""JSON lines of several trainers, and what is wrong in them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import postmortem
from postmortem.core.reading import Reading
from postmortem.core.roles import role_of
from postmortem.readers.json_lines import JsonLines
from tests.readers.cases import usual_name

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@usual_name(JsonLines)
def name_of_a_file() -> str:
    return "metrics.jsonl"


def read(path: Path, rows: list[Any]) -> Reading:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return JsonLines.read(path)


def column(reading: Reading, tag: str) -> list[tuple[int, float]]:
    points = reading.points
    code = points.tags.index(tag)
    return [(int(s), float(v)) for c, s, v in zip(points.code, points.step, points.value, strict=True) if c == code]


def test_mmdetection(tmp_path: Path) -> None:
    """Iterations start again with each epoch and are made global; rows of the validation stand at the end of their
    epoch."""
    rows: list[Any] = [
        {
            "env_info": "sys.platform: linux",
            "seed": 0,
            "config": "lr = 0.1\nrunner = dict(type='EpochBasedRunner', max_epochs=12)",
        }
    ]
    for epoch in (1, 2, 3):
        rows += [{"mode": "train", "epoch": epoch, "iter": i, "loss": 1.0, "time": 0.3} for i in (50, 100, 150)]
        rows.append({"mode": "val", "epoch": epoch, "iter": 5000, "bbox_mAP": 0.1 * epoch, "loss": 9.0})
    reading = read(tmp_path / "20210812.log.json", rows)
    assert [s for s, _ in column(reading, "loss")] == [50, 100, 150, 200, 250, 300, 350, 400, 450]
    assert column(reading, "val/bbox_mAP") == [(150, 0.1), (300, 0.2), (450, pytest.approx(0.3))]
    assert [s for s, _ in column(reading, "val/loss")] == [150, 300, 450]
    assert reading.skipped == {"header lines": 1}
    assert reading.config == {"max_epochs": 12}
    assert "150 per epoch" in reading.notes[0]
    assert reading.problems == []


def test_mmengine(tmp_path: Path) -> None:
    """In scalars.json the validation's own step is the epoch: its rows stand where training was."""
    rows: list[Any] = []
    for epoch in (1, 2):
        rows += [
            {"loss": 1.0, "epoch": epoch, "iter": 50 * k + 150 * (epoch - 1), "step": 50 * k + 150 * (epoch - 1)}
            for k in (1, 2, 3)
        ]
        rows.append({"coco/bbox_mAP": 0.1, "step": epoch})
    reading = read(tmp_path / "scalars.json", rows)
    assert [s for s, _ in column(reading, "loss")] == [50, 100, 150, 200, 250, 300]
    assert column(reading, "coco/bbox_mAP") == [(150, 0.1), (300, 0.1)]


def test_llama_factory(tmp_path: Path) -> None:
    """current_steps is the step; times as text and percentages do not disturb."""
    rows = [
        {
            "current_steps": 10 * i,
            "total_steps": 500,
            "loss": 2.0,
            "lr": 1e-5,
            "epoch": 0.06 * i,
            "elapsed_time": "0:00:10",
        }
        for i in (1, 2)
    ]
    reading = read(tmp_path / "trainer_log.jsonl", rows)
    assert column(reading, "loss") == [(10, 2.0), (20, 2.0)]
    assert reading.config == {"total_steps": 500}
    assert reading.skipped == {"non-numeric values": 2}


def test_generic(tmp_path: Path) -> None:
    """Nested objects are flattened, bare and quoted NaN are numbers, booleans and null are none, a rank and times are
    known."""
    rows = [
        {
            "step": 1,
            "train": {"loss": math.nan, "opt": {"lr": 0.1}},
            "ok": True,
            "none": None,
            "rank": 2,
            "timestamp": 1.7e9,
        },
        {"step": 2, "train": {"loss": "Infinity"}, "word": "x", "rank": 3, "timestamp": 1.7e9 + 1},
    ]
    reading = read(tmp_path / "metrics.jsonl", rows)
    loss = column(reading, "train/loss")
    assert math.isnan(loss[0][1])
    assert loss[1] == (2, math.inf)
    assert column(reading, "train/opt/lr") == [(1, 0.1)]
    assert sorted(reading.points.tags) == ["train/loss", "train/opt/lr"]
    assert list(reading.points.rank) == [2, 2, 3]
    assert (reading.started, reading.stopped) == (1.7e9, 1.7e9 + 1)
    assert reading.skipped == {"non-numeric values": 2}


def test_ranks_count_for_themselves(tmp_path: Path) -> None:
    """Ranks that write into one file, out of step with one another, keep their own steps."""
    rows = [{"step": (i // 4) + (i % 4) * 3, "rank": i % 4, "loss": 1.0} for i in range(80)]
    reading = read(tmp_path / "metrics.jsonl", rows)
    assert [s for s, _ in column(reading, "loss")] == [row["step"] for row in rows]
    assert reading.step_axis == "step"


@pytest.mark.parametrize("step", [1e300, -5, "NaN", 10**400, 2**70, None, [1], "x"])
def test_impossible_steps(tmp_path: Path, step: Any) -> None:
    """Steps that cannot be steps leave the rows in place, numbered."""
    reading = read(
        tmp_path / "metrics.jsonl",
        [{"step": step, "epoch": 2**61, "loss": 1.0}, {"step": step, "epoch": 1, "loss": 2.0}],
    )
    assert [v for _, v in column(reading, "loss")] == [1.0, 2.0]
    assert reading.step_axis == "row"


def test_deep_nesting(tmp_path: Path) -> None:
    """An object nested too deep for any metric is counted, and costs nothing else."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 0.5, "deep": ' + '{"a": ' * 300 + "1" + "}" * 300 + "}\n")
    reading = JsonLines.read(path)
    assert column(reading, "loss") == [(1, 0.5)]
    assert reading.skipped == {"non-numeric values": 1}


def test_bad_lines(tmp_path: Path) -> None:
    """Lines that are no JSON object are Problems with their line; the rows around them are kept."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 1.0}\nTraceback!\n[1, 2]\n\n{"step": 2, "loss": 0.5}\n{"step": 3, "lo')
    reading = JsonLines.read(path)
    assert column(reading, "loss") == [(1, 1.0), (2, 0.5)]
    assert [p.line for p in reading.problems] == [2, 3, 6]
    assert reading.problems[-1].what.startswith("truncated")


def test_no_json_at_all(tmp_path: Path) -> None:
    """Text under a JSON name is one Problem."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("hello\nworld\n")
    reading = JsonLines.read(path)
    assert len(reading.points) == 0
    (problem,) = reading.problems
    assert problem.what.startswith("not JSON lines")


@pytest.mark.parametrize(
    ("name", "head", "claimed"),
    [
        ("a.jsonl", '{"step": 1, "loss": 2}\n', True),
        ("a.jsonl", '{"step": 1, "mystery": NaN}\n', True),
        ("a.ndjson", '{"train/global_step": 1, "x": 2}\n', True),
        ("x.log.json", '{"env_info": "' + "x" * 5000, True),
        ("log.json", '{"step": 1, "loss": 2}\n{"step": 2, "loss": 2}\n', True),
        ("config.json", '{"step": 1, "loss": 2}\n', False),
        ("config.json", '{\n  "step": 1,\n  "loss": 2\n}\n', False),
        ("data.jsonl", '{"instruction": "add", "output": "3"}\n', False),
        ("data.jsonl", "[1, 2]\n", False),
        ("a.txt", '{"step": 1, "loss": 2}\n', False),
        ("a.jsonl", "", False),
    ],
)
def test_claims(tmp_path: Path, name: str, head: str, claimed: bool) -> None:
    """Logs are claimed; settings and data sets are not."""
    assert JsonLines.claims(tmp_path / name, head.encode()[:4096]) is claimed


@QUICK
@given(cut=st.integers(1, 10**6))
def test_cut_anywhere(tmp_path: Path, cut: int) -> None:
    """A file cut at any byte keeps all complete lines, and says where it was cut."""
    text = "".join(json.dumps({"step": i, "loss": 1 / (i + 1)}) + "\n" for i in range(9))
    cut = 1 + cut % (len(text) - 1)
    path = tmp_path / "metrics.jsonl"
    path.write_text(text[:cut])
    reading = JsonLines.read(path)
    whole = text[:cut].count("}")
    assert (column(reading, "loss") if whole else []) == [(i, 1 / (i + 1)) for i in range(whole)]
    assert bool(reading.problems) == (not text[:cut].rstrip().endswith("}"))


@QUICK
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    """Any bytes between lines raise nothing, and the lines around them survive."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 0.5}\n' + data + b'\n{"step": 2, "loss": 0.25}\n')
    reading = JsonLines.read(path)
    assert {0.5, 0.25} <= set(reading.points.value)


def test_digits_beyond_any_float(tmp_path: Path) -> None:
    """An integer of 401 digits is damage that is counted, not an infinity; what is written as an infinity is one."""
    (tmp_path / "m.jsonl").write_text(
        f'{{"step": 1, "loss": {"9" * 401}}}\n{{"step": 2, "loss": -1e999}}\n{{"step": 3, "loss": Infinity}}\n'
    )
    reading = JsonLines.read(tmp_path / "m.jsonl")
    assert column(reading, "loss") == [(2, -math.inf), (3, math.inf)]
    assert reading.skipped == {"integers too large for a float (damaged)": 1}


def test_the_mean_of_statistics_is_the_value(tmp_path: Path) -> None:
    """StyleGAN's stats.jsonl: of {num, mean, std} the mean is the value, and the tick is the step."""
    rows = [
        {
            "Loss/G/loss": {"num": 32, "mean": 3.5 - tick / 10, "std": 0.9},
            "Loss/scores/fake": {"num": 64, "mean": -3.1, "std": 1.1},
            "Progress/tick": {"num": 1, "mean": float(tick), "std": 0.0},
            "timestamp": 1.6e9 + tick,
        }
        for tick in range(4)
    ]
    reading = read(tmp_path / "stats.jsonl", rows)
    assert JsonLines.claims(tmp_path / "stats.jsonl", (tmp_path / "stats.jsonl").read_bytes())
    assert column(reading, "Loss/G/loss") == [(0, 3.5), (1, 3.4), (2, 3.3), (3, 3.2)]
    assert set(reading.points.tags) == {"Loss/G/loss", "Loss/scores/fake"}
    assert reading.skipped == {"counts and spreads beside a mean": 24}


def test_other_nested_objects_keep_their_keys(tmp_path: Path) -> None:
    """An object with a key that is no statistic is a group of metrics, whatever else it holds."""
    reading = read(tmp_path / "m.jsonl", [{"step": 1, "reward": {"mean": 2.0, "kl": 0.1}, "loss": {"mean": 3.0}}])
    assert set(reading.points.tags) == {"reward/mean", "reward/kl", "loss/mean"}


def test_numbers_as_text(tmp_path: Path) -> None:
    """A metric that was formatted, or written with str(tensor), is a number; other texts stay texts."""
    rows = [{"step": 1, "loss": "0.5", "lr": "1e-4", "job": "4711"}, {"step": 2, "loss": "tensor(0.25)", "job": "4711"}]
    reading = read(tmp_path / "log.jsonl", rows)
    assert dict(zip(reading.points.tags, reading.points.value, strict=False)) == {"loss": 0.5, "lr": 1e-4}
    assert reading.points.value.tolist() == [0.5, 1e-4, 0.25]
    assert reading.skipped == {"non-numeric values": 2}
    assert reading.problems == []


def test_texts_in_a_column_of_numbers_are_lost(tmp_path: Path) -> None:
    """They are counted and said."""
    rows = [{"step": i, "loss": 0.5 if i < 10 else "error"} for i in range(15)]
    (problem,) = read(tmp_path / "log.jsonl", rows).problems
    assert (problem.line, problem.lost) == (11, "5 values of loss")


@pytest.mark.parametrize("counter", ["it", "gstep", "upd", "global_it", "t", "round", "batch"])
def test_rows_are_a_log_whatever_their_counter_is_called(tmp_path: Path, counter: str) -> None:
    """A short name counts the steps if it rises in every row."""
    reading = read(tmp_path / "log.jsonl", [{counter: i * 10, "reg_err": 1 / (1 + i), "lr": 0.1} for i in range(8)])
    assert JsonLines.claims(tmp_path / "log.jsonl", (tmp_path / "log.jsonl").read_bytes())
    assert reading.step_axis == counter
    assert [step for step, _ in column(reading, "reg_err")] == list(range(0, 80, 10))


def test_metrics_without_a_counter_are_a_log_and_data_are_none(tmp_path: Path) -> None:
    """A loss or a learning rate in every row shows a training; beside sentences it is a data set."""
    log, data = tmp_path / "log.jsonl", tmp_path / "data.jsonl"
    read(log, [{"train_loss": 1 / (1 + i), "lr": 0.1} for i in range(8)])
    read(data, [{"id": i, "text": "the cat sat down", "loss": 0.5} for i in range(8)])
    assert JsonLines.claims(log, log.read_bytes())
    assert not JsonLines.claims(data, data.read_bytes())


def test_a_counter_within_batches_that_falls_counts_nothing(tmp_path: Path) -> None:
    """Rows are counted where a short name goes back."""
    reading = read(tmp_path / "log.jsonl", [{"t": i % 3, "loss": 0.5} for i in range(9)])
    assert reading.step_axis == "row"


@pytest.mark.parametrize("key", ["kind", "split", "phase", "stage", "set", "subset", "mode"])
@pytest.mark.parametrize("word", ["valid", "dev", "Holdout", "eval"])
def test_rows_that_name_their_data(tmp_path: Path, key: str, word: str) -> None:
    """Rows of held-out data have tags of their own; their counter is that of the training."""
    rows = []
    for i in range(10, 101, 10):
        rows.append({key: "train", "epoch": (i - 1) // 50, "i": i, "bce": 1.0 / i})
        if i % 50 == 0:
            rows.append({key: word, "epoch": (i - 1) // 50, "i": i, "bce": 2.0 / i, "val_f1": 0.5})
    reading = read(tmp_path / "events.jsonl", rows)
    assert column(reading, "bce") == [(i, 1.0 / i) for i in range(10, 101, 10)]
    assert column(reading, f"{word}/bce") == [(50, 0.04), (100, 0.02)]
    assert column(reading, "val_f1") == [(50, 0.5), (100, 0.5)]
    assert role_of(f"{word}/bce") == "val_loss"


def test_the_counter_of_the_data_loader_of_an_evaluation(tmp_path: Path) -> None:
    """A counter that starts again in the rows of an evaluation does not count the training."""
    rows = []
    for step in range(1, 31):
        rows.append({"phase": "train", "step": step, "loss": 1.0})
        if step % 10 == 0:
            rows.append({"phase": "test", "step": 2, "loss": 2.0})
    reading = read(tmp_path / "log.jsonl", rows)
    assert [s for s, _ in column(reading, "loss")] == list(range(1, 31))
    assert [s for s, _ in column(reading, "test/loss")] == [10, 20, 30]


def test_metric_and_value(tmp_path: Path) -> None:
    """Rows of one metric each, named by one key, valued by another."""
    rows = [{"step": s, "metric": m, "value": v} for s in range(5) for m, v in (("loss", 2.0 - s), ("lr", 0.1))]
    reading = read(tmp_path / "log.jsonl", rows)
    assert column(reading, "loss") == [(s, 2.0 - s) for s in range(5)]
    assert column(reading, "lr") == [(s, 0.1) for s in range(5)]


def test_the_step_of_two_processes_that_write_the_same_rows(tmp_path):
    """LLaMA-Factory's log, written by two ranks a row apart: its own counter is the step, whatever the order."""
    ranks = [
        [
            f'{{"current_steps": {i}, "total_steps": 900, "loss": {2 - i / 900}, "percentage": {i / 9}}}'
            for i in range(10, 901, 10)
        ]
        for _ in "ab"
    ]
    late = [row for pair in zip(ranks[0][1:], ranks[1], strict=False) for row in pair]
    (tmp_path / "trainer_log.jsonl").write_text("\n".join([ranks[0][0], *late, ranks[1][-1]]) + "\n")
    run = postmortem.load(tmp_path / "trainer_log.jsonl")
    loss = run.frame[run.frame.tag == "loss"]
    assert run.step_axis == "step"
    assert (len(loss), loss.step.min(), loss.step.max()) == (180, 10, 900)
    assert not [f for f in postmortem.scan(tmp_path).runs[0].findings if f.name == "silent-death"]


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 5), st.booleans())
def test_rows_with_epoch_and_iteration_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, random: Random, epochs: int, from_zero: bool
) -> None:
    """Shuffled rows of mmdetection have the steps and the order of the same rows in order; a repeated row does not."""
    rows = [
        {"mode": "train", "epoch": epoch, "iter": i * 10 - from_zero, "loss": epoch + i / 10}
        for epoch in range(1, epochs + 1)
        for i in range(1, 8)
    ]
    rows += [{"mode": "val", "epoch": epoch, "iter": 70, "mAP": epoch / 10} for epoch in range(1, epochs + 1)]
    in_order = sorted(rows, key=lambda r: (r["epoch"], r["mode"]))
    random.shuffle(rows)
    found = []
    for order in (in_order, rows):
        path = tmp_path_factory.mktemp("log") / "x.log.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in order))
        points = JsonLines.read(path).points
        found.append(
            {
                tag: [(s, v) for s, v, c in zip(points.step, points.value, points.code, strict=True) if c == i]
                for i, tag in enumerate(points.tags)
            }
        )
    assert found[0]["loss"] == found[1]["loss"]
    assert found[0]["val/mAP"] == found[1]["val/mAP"]


def test_rounds_of_several_updates(tmp_path: Path) -> None:
    """PPO logs the round of collected data, `iter`, and each update: the updates are the steps."""
    rows = [{"iter": 1 + k // 4, "update": k + 1, "pi_loss": 0.5 - 0.01 * k} for k in range(40)]
    path = tmp_path / "updates.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = postmortem.load(path)
    assert list(run.series("pi_loss").index) == list(range(1, 41))


def test_two_rows_of_a_step_have_metrics_of_their_own(tmp_path: Path) -> None:
    """Rows of training and of held-out data alternate: the step stays that of both."""
    rows = [
        {"iteration": 10 * (k // 2), "update": k, ("loss" if k % 2 else "val_loss"): 0.5 - 0.01 * k} for k in range(40)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = postmortem.load(path)
    assert list(run.series("loss").index) == list(range(0, 200, 10))
