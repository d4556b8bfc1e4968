"""Which counter is the step axis, where rows count several things or nothing that can be a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import postmortem
from postmortem.core.run import Run
from postmortem.readers.text import read_text


def load(folder: Path, lines: list[str]) -> Run:
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    return postmortem.load(folder / "train.log")


def steps(run: Run, tag: str) -> list[int]:
    frame = run.frame
    return [int(step) for step in frame.step[frame.tag == tag]]


def notes(run: Run) -> str:
    return " ".join(run.notes)


def loss(i: int) -> str:
    return f"{2 * 0.97**i + 0.1 * np.sin(i):.4f}"


SAMPLES = [f"  [{i}] TurbID={i + 1}, start_idx={100 * i + 7}" for i in range(5)]


def test_a_listing_of_samples_counts_no_steps(tmp_path: Path) -> None:
    """Numbers of samples in front of the training are not the step of all losses: the epochs are."""
    rows = [f"Epoch {i}/50 train_loss={loss(i)} lr=0.001" for i in range(1, 41)]
    run = load(tmp_path, ["Samples:", *SAMPLES, *rows])
    assert steps(run, "train_loss") == list(range(1, 41))
    assert run.readings[0].step_axis == "epoch"
    assert "not those of the training" in notes(run)


def test_rows_without_a_step_after_a_listing_are_counted(tmp_path: Path) -> None:
    """Without an epoch either, rows are counted, and the notes say so."""
    run = load(tmp_path, [*SAMPLES, *(f"train_loss={loss(i)}" for i in range(40))])
    assert run.readings[0].step_axis == "row"
    assert len(set(steps(run, "train_loss"))) == 40
    assert "rows are counted" in notes(run)


def test_a_listing_between_the_rows_of_a_training_moves_nothing(tmp_path: Path) -> None:
    """Samples shown after each evaluation do not take its numbers to their own, and are no restart."""
    lines = []
    for i in range(0, 200, 10):
        lines.append(f"step {i} loss {loss(i // 10)}")
        if i % 50 == 40:
            lines += [f"[{k}] prob=0.{k}1" for k in range(3)] + [f"val loss: {loss(i // 10)}"]
    run = load(tmp_path, lines)
    assert steps(run, "val loss") == [40, 90, 140, 190]
    assert not run.streams[0].restarts


def test_numbers_of_samples_in_random_order_are_no_steps(tmp_path: Path) -> None:
    """A number that goes up and down at random names what a row is about, not when it was."""
    ids = np.random.default_rng(0).permutation(60)
    run = load(tmp_path, [f"[{k}] loss={loss(i)}" for i, k in enumerate(ids)])
    assert run.readings[0].step_axis == "row"


def test_an_inner_loop_is_no_training(tmp_path: Path) -> None:
    """A loop that starts again for each sample is no row of restarts: rows are counted."""
    lines = [f"Step {n} - TTA Loss: {loss(n + k)}" for k in range(12) for n in range(0, 50, 10)]
    run = load(tmp_path, lines)
    assert run.readings[0].step_axis == "row"
    assert not run.streams[0].restarts
    assert "starts again 11 times" in notes(run)


def test_a_loop_of_known_length_is_counted_on(tmp_path: Path) -> None:
    """Where each pass ends at its printed total, steps continue from pass to pass, though no epoch is printed."""
    lines = [f"Step [{n}/100], Loss: {loss(n // 25 + 4 * k)}" for k in range(5) for n in range(25, 101, 25)]
    run = load(tmp_path, lines)
    assert steps(run, "Loss") == list(range(25, 501, 25))
    assert "counted on" in notes(run)


def test_attempts_that_die_at_the_same_step_are_restarts(tmp_path: Path) -> None:
    """Three attempts that end at the same step are not passes of a loop."""
    run = load(tmp_path, [f"step {n} loss {loss(n)}" for _ in range(3) for n in range(40)])
    assert len(run.streams[0].restarts) == 2


def test_two_counters_are_two_axes(tmp_path: Path) -> None:
    """A second counter that is one ahead of the first keeps its steps, places no others, and makes none go back."""
    lines = []
    for i in range(40):
        lines.append(f"step={i + 1}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]")
        lines.append(f"Step at {i}: loss = {loss(i)}")
        lines.append(f"gradient norm: {loss(i)}")
    run = load(tmp_path, lines)
    assert not run.streams[0].restarts
    assert steps(run, "loss") == steps(run, "gradient norm") == list(range(40))
    assert steps(run, "lr") == list(range(1, 41))


def test_settings_are_no_points(tmp_path: Path) -> None:
    """A number of epochs among printed settings is no epoch, so what stands beside it has no place in the training."""
    settings = ["Namespace(batch_size=24, epochs=80, lr=0.001, momentum=0.9)", "epochs: 80", "weight_decay: 0.0005"]
    rows = [f"Epoch: {e}, Step: {n}/50, loss: {loss(10 * e + n // 5)}" for e in range(3) for n in range(0, 50, 5)]
    run = load(tmp_path, [*settings, *rows])
    assert list(run.roles) == ["loss"]
    assert steps(run, "loss")[0] == 0
    rows = [f"epochs: {e}, loss: {loss(e)}" for e in range(20)]
    assert steps(load(tmp_path, rows), "loss") == list(range(20))


def test_summaries_are_no_points_of_the_training(tmp_path: Path) -> None:
    """Losses without a step, of a part or of an evaluation, are series of their own, no points of the training."""
    lines = []
    for i in range(200):
        lines.append(f"Step {i} | Loss: {loss(i)} | LR: 0.001")
        if i % 100 == 99:
            lines += ["Results of this part", f"Loss: {0.9 - i / 1000:.4f}"]
            lines += ["📊 Evaluation Results:", f"   Loss: {0.8 - i / 1000:.4f}"]
    run = load(tmp_path, lines)
    assert steps(run, "Loss") == list(range(200))
    assert steps(run, "summary Loss") == [99, 199]
    assert run.roles["summary Loss"] == "loss"
    assert steps(run, "Evaluation Loss") == [99, 199]
    assert run.roles["Evaluation Loss"] == "val_loss"


def test_the_inner_counter_of_an_evaluation_places_no_rows(tmp_path: Path) -> None:
    """Results after "Evaluating iter 50/50" are at the last step of the training, not at 50."""
    rows = [f"step {i} | loss: {loss(i)} | lr: 1e-3" for i in range(1, 201)]
    passes = [f"Evaluating iter {i}/50" for i in range(1, 51)]
    run = load(tmp_path, [*rows, *passes, "results after training | eval_loss: 2.35 | eval_ppl: 10.3"])
    assert steps(run, "eval_loss") == [200]


def test_evaluations_alone_have_no_step(tmp_path: Path) -> None:
    """A log of evaluations only: their inner counters are no axis."""
    rows = []
    for split, value in (("validation", 1.8), ("test", 1.7)):
        rows += [f"Evaluating iter {i}/75" for i in range(1, 76)]
        rows.append(f" {split} results at the end of training | lm_loss value: {value}")
    run = load(tmp_path, rows)
    assert run.readings[0].step_axis == "row"


def test_two_rows_show_nothing_against_a_counter(tmp_path: Path) -> None:
    """Two rows of another form that name their step keep it, though it is lower than that of the rows around them."""
    rows = [f"step {200 * i} | Loss: {loss(i)}" for i in range(1, 21)]
    last = ["epoch=3 step=1200 loss=0.4312 acc=87.5", "epoch: 3 | step: 1,300 | loss: 0.4201 | ppl: 1.5"]
    run = load(tmp_path, [*rows[:15], *last, *rows[15:]])
    assert steps(run, "acc") == [1200]
    assert steps(run, "ppl") == [1300]


def test_a_long_listing_is_not_the_main_quantity(tmp_path: Path) -> None:
    """Lines of a listing do not decide about the steps, where a known quantity is printed with one."""
    bars = [f"Downloading model-00002.safetensors: {i / 40:.3f} GB" for i in range(40)]
    run = load(tmp_path, ["step=10, skipped=0, lr=1e-4", "step=20, skipped=0, lr=2e-4", *bars])
    assert steps(run, "lr") == [10, 20]
    assert run.readings[0].step_axis == "step"


@pytest.mark.parametrize("unit", ["tokens", "samples", "images"])
def test_what_was_consumed_counts_where_nothing_else_does(tmp_path: Path, unit: str) -> None:
    """A count at the start of each row is the step, also where the evaluation prints the same count again."""
    lines = []
    for i in range(1, 31):
        lines.append(f"{unit} {2048 * i:8d} | bpb {loss(i)} | lr 4.00e-04 | 12.4k tok/s")
        if i % 10 == 0:
            lines.append(f"{unit} {2048 * i:8d} | val_bpb {loss(i)}")
    run = load(tmp_path, lines)
    assert steps(run, "bpb") == [2048 * i for i in range(1, 31)]
    assert steps(run, "val_bpb") == [20480, 40960, 61440]


@pytest.mark.parametrize(
    "row", ["{0:6d} loss={1} lr=1e-3", "{0} train_loss: {1} lr: 0.1", "2026-03-12 10:00:02  {0:5d} loss={1}"]
)
def test_a_number_before_a_metric_with_a_sign_is_the_step(tmp_path: Path, row: str) -> None:
    """No word names the step, but each row begins with it."""
    run = load(tmp_path, [row.format(10 * i, loss(i)) for i in range(1, 31)])
    assert steps(run, run.frame.tag.iloc[0]) == [10 * i for i in range(1, 31)]


@pytest.mark.parametrize("header", ["   epoch    trn_nll    dev_nll     best", "epoch      trn_nll    dev_nll    best"])
def test_blank_cells_of_a_table_are_left_out(tmp_path: Path, header: str) -> None:
    """Columns that are blank in some rows, at the end or in the middle, cost no row and move no number."""
    at = [header.find(name) for name in ("epoch", "trn_nll", "dev_nll", "best")]
    lines = [header]
    for i in range(1, 31):
        cells = [str(i), f"{3 / i:.5f}", f"{4 / i:.5f}" if i % 5 == 0 else "", "*" if i % 3 == 0 else ""]
        row = ""
        for place, cell in zip(at, cells, strict=True):
            row = row.ljust(place) + cell
        lines.append(row.rstrip())
    run = load(tmp_path, lines)
    assert steps(run, "trn_nll") == list(range(1, 31))
    assert steps(run, "dev_nll") == list(range(5, 31, 5))


def test_summaries_of_epochs_that_come_again_are_no_points_either(tmp_path: Path) -> None:
    """An attempt that is appended to the log names the same epochs again; its steps come before their summary."""
    lines = []
    for _ in range(3):
        for epoch in (7, 8):
            lines += [f"Epoch[{epoch}] Batch [{20 * i}] Train-L1loss={loss(i)}" for i in range(1, 20)]
            lines.append(f"Epoch[{epoch}] Train-L1loss=0.{epoch}")
    run = load(tmp_path, lines)
    assert {float(v) for v in run.frame.value[run.frame.tag == "summary Train-L1loss"]} == {0.7, 0.8}
    assert not {0.7, 0.8} & set(run.frame.value[run.frame.tag == "Train-L1loss"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_rounded_counters_stand_still_and_never_go_back(encoding: str, tmp_path: Path) -> None:
    """LeRobot rounds its step to thousands: its rows share steps, none is lost, and "ep" counts episodes."""

    def short(n: int) -> str:
        return f"{n}" if n < 1000 else f"{n / 1000:.0f}K"

    rows = [
        f"INFO 2026-05-06 17:{i // 60:02d}:{i % 60:02d} train.py:9 step:{short(200 * i)} smpl:{short(6400 * i)} "
        f"ep:{short(19 * i)} epch:{0.37 * i:.2f} loss:{loss(i)} grdn:{3 + np.sin(i):.3f} lr:1.0e-05"
        for i in range(1, 81)
    ]
    (tmp_path / "train.log").write_bytes("\n".join([*rows, ""]).encode(encoding))
    run = postmortem.load(tmp_path / "train.log")
    wanted = [200 * i if 200 * i < 1000 else 1000 * round(200 * i / 1000) for i in range(1, 81)]
    assert steps(run, "loss") == steps(run, "lr") == wanted
    assert run.frame.segment.max() == 0
    assert len(steps(run, "ep")) == 80


def test_a_total_that_is_exceeded_is_not_the_length_of_an_epoch(tmp_path: Path) -> None:
    """The counter goes on to 59 though the row says that 20 are to come: the next epoch follows at 60."""
    rows = [f"epoch={e} i={i}/20 loss={loss(60 * e + i)}" for e in range(3) for i in range(60 if e < 2 else 15)]
    run = load(tmp_path, rows)
    assert steps(run, "loss") == list(range(135))
    assert run.frame.segment.max() == 0
    assert "an epoch is assumed to have 60 steps" in notes(run)


def test_a_total_that_is_exceeded_a_little_stays_the_length_of_its_epoch(tmp_path: Path) -> None:
    """Epochs of 40 and of 60 batches, one of which is a little longer than announced: each keeps its own length."""
    totals = [40, 40, 60, 60]
    lengths = [40, 40, 64, 60]
    places = [(e, i) for e, length in enumerate(lengths) for i in range(0, length, 2)]
    run = load(tmp_path, [f"epoch={e} i={i}/{totals[e]} loss={loss(40 * e + i)}" for e, i in places])
    assert steps(run, "loss") == [sum(totals[:e]) + i for e, i in places]
    assert "assumed" not in notes(run)


def test_the_number_of_a_class_is_no_step(tmp_path: Path) -> None:
    """A listing of scores by class has no steps, however its numbers rise."""
    assert load(tmp_path, [f"class {i} iou: {0.5 + i / 50:.2f}" for i in range(20)]).step_axis == "row"


@pytest.mark.parametrize(
    "style",
    ["[Epoch: {e}] [{i}/{n}] loss = {x} ({x});", "Epoch {e}, batch {i}/{n}: loss {x}", "[{e}][{i}/{n}] loss: {x}"],
)
def test_epochs_of_different_length_follow_one_another(style: str, tmp_path: Path) -> None:
    """A sampler that draws anew makes epochs of different length: no step goes back, and none is skipped."""
    lengths, rows, expected, before = [51, 55, 48, 60, 44, 58], "", [], 0
    for e, n in enumerate(lengths):
        for i in range(0, n, 20):
            rows += style.format(e=e, i=i, n=n, x=f"{3 - (before + i) / 900:.4f}") + "\n"
            expected.append(before + i)
        before += n
    path = tmp_path / "train.log"
    path.write_text(rows)
    points = read_text(path).points
    assert points.step[points.code == points.tags.index("loss")].tolist() == expected


@pytest.mark.parametrize(("pair", "apart"), [("{}: {}", " | "), ("{}={}", ", "), ("{}: {}", ", "), ("{} = {}", "; ")])
def test_a_line_of_settings_is_no_row(pair: str, apart: str, tmp_path: Path) -> None:
    """What a program prints about its configuration in one line is neither a point nor a position."""
    settings = {
        "seed": 42,
        "num_workers": 6,
        "batch_size": 16,
        "weight_decay": 0.0005,
        "set_cost_bbox": 5,
        "epochs": 20,
    }
    line = apart.join(pair.format(k, v) for k, v in settings.items())
    rows = "".join(
        f"Epoch {e} step {s}/100 loss: {2 - (e * 100 + s) / 900:.4f}\n" for e in range(3) for s in range(0, 100, 20)
    )
    path = tmp_path / "train.log"
    path.write_text(f"[Config] {line}\n{rows}")
    assert set(read_text(path).points.tags) == {"loss"}


def test_a_configuration_alone_is_no_training(tmp_path: Path) -> None:
    """Two dumps of a configuration, with the steps of its schedule, hold no metric."""
    dump = "SOLVER:\n  BASE_LR: 0.00035\n  IMS_PER_BATCH: {}\n  STEPS: [40, 70]\n  GAMMA: 0.1\nTEST:\n  MARGIN: 128\n"
    path = tmp_path / "train.log"
    path.write_text(dump.format(64) * 3)
    assert not len(read_text(path).points.value)
