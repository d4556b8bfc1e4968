"""Sentences of callbacks, numbers without names, and what is no metric."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem


def points(folder: Path, text: str) -> dict[str, list[tuple[int, float]]]:
    (folder / "train.out").write_text(text)
    frame = postmortem.load(folder / "train.out").frame
    return {
        str(tag): list(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))
        for tag, rows in frame.groupby("tag", observed=True, sort=False)
    }


def test_early_stopping_reports_the_metric_not_the_improvement(tmp_path: Path) -> None:
    """Lightning: the best score is the value of the metric, also in the first sentence, which has no improvement."""
    found = points(
        tmp_path,
        "Metric val_loss improved. New best score: 0.102\n"
        + "".join(
            f"Metric val_loss improved by 0.010 >= min_delta = 0.0. New best score: {0.09 - i / 100:.3f}\n"
            for i in range(5)
        )
        + "Monitored metric val_loss did not improve in the last 3 records. Best score: 0.050. "
        "Signaling Trainer to stop.\n",
    )
    assert [value for _, value in found.pop("val_loss")] == [0.102, 0.09, 0.08, 0.07, 0.06, 0.05]
    assert found == {}


@pytest.mark.parametrize(
    ("sentence", "tag"),
    [
        ("Epoch {e}: val_loss improved from {old} to {new}, saving model to best.h5", "val_loss"),
        ("Validation loss decreased ({old} --> {new}).  Saving model ...", "Validation loss"),
        (
            "Epoch {e}, global step {e}: 'val_loss' reached {new} (best {new}), saving model to 'a.ckpt' as top 1",
            "val_loss",
        ),
    ],
)
def test_a_checkpoint_reports_the_new_value(tmp_path: Path, sentence: str, tag: str) -> None:
    """Keras, the EarlyStopping class that many copy, Lightning: the old value is no point."""
    lines = [
        f"Epoch {e} train_loss: {2 - e / 10:.3f}\n" + sentence.format(e=e, old=3.5 - e / 10, new=3.4 - e / 10) + "\n"
        for e in range(8)
    ]
    found = points(tmp_path, "".join(lines))
    assert [round(value, 3) for _, value in found.pop(tag)] == [round(3.4 - e / 10, 3) for e in range(8)]
    assert list(found) == ["train_loss"]


@pytest.mark.parametrize(
    "row",
    [
        "Training loss (for one batch) at step {i}: {loss}",
        "Loss at step {i:03d}: {loss}",
        "loss at step {i}: tf.Tensor({loss}, shape=(), dtype=float32)",
        "Average loss at step  {i} :  {loss}",
        "Cost after {i} iterations = {loss}",
        "Loss at the end of step {i}/600 is: {loss}",
        "12:01:03.402 [main] INFO o.d.optimize.ScoreIterationListener - Score at iteration {i} is {loss}",
        "[train] Loss at step {i}: {loss}",
    ],
)
def test_the_step_inside_the_name(tmp_path: Path, row: str) -> None:
    """The guides of Keras print the loss at a step: the step is not the loss."""
    found = points(tmp_path, "".join(row.format(i=i * 20, loss=3 - i / 50) + "\n" for i in range(30)))
    assert [values[:2] for values in found.values()] == [[(0, 3.0), (20, 2.98)]]


def test_a_score_that_falls_is_a_loss(tmp_path: Path) -> None:
    """DL4J prints the loss as the score; a score that rises is one, and one beside a loss too."""
    rows = [f"Score at iteration {i * 10} is {3 - i / 50}\n" for i in range(60)]
    (tmp_path / "a.log").write_text("".join(rows))
    assert postmortem.load(tmp_path / "a.log").roles == {"Score": "loss"}
    (tmp_path / "b.log").write_text("".join(f"Score at iteration {i * 10} is {i / 50}\n" for i in range(60)))
    assert postmortem.load(tmp_path / "b.log").roles == {"Score": "reward"}


def test_what_stands_before_the_sentence_counts(tmp_path: Path) -> None:
    """An epoch in front of it is the epoch; an action at a step with a count behind it is no metric."""
    rows = [f"Epoch {e}, loss at batch {n}/30: {9 - e - n / 30:.2f}\n" for e in range(3) for n in (10, 20, 30)]
    rows.insert(4, "Stopped at epoch 2: 3\n")
    found = points(tmp_path, "".join(rows))
    assert {tag: [step for step, _ in values] for tag, values in found.items()} == {"loss": list(range(10, 100, 10))}


def test_a_confusion_matrix_places_nothing(tmp_path: Path) -> None:
    """The last number of a row of counts is no step."""
    matrix = "    0    1    2\n----------------\n  173  161 8348 | 0 = 0\n  179  160 8287 | 1 = 1\n"
    rows = [f"Loss at step {i}: {3 - i / 500:.2f}\n" for i in range(0, 1000, 20)]
    found = points(tmp_path, "".join((*rows[:20], matrix, "accuracy: 0.6\n", *rows[20:], matrix, "accuracy: 0.7\n")))
    assert found["accuracy"] == [(380, 0.6), (980, 0.7)]


def test_printed_settings_are_no_points(tmp_path: Path) -> None:
    """The arguments that a program prints at its start, as a namespace or a dataclass."""
    rows = [f"| epoch {1 + i // 10} | {i % 10 * 20}/200 batches | lr 20.00 | loss {5 - i / 50}\n" for i in range(40)]
    for settings in ("Namespace(batch_size=20, epochs=5, lr=20)", "args: TrainArgs(lr=3, loss_weight=1, epochs=5)"):
        assert len(points(tmp_path, settings + "\n" + "".join(rows))["lr"]) == 40


@pytest.mark.parametrize(
    "row",
    [
        "{i} tensor({loss:.4f}, device='cuda:0', grad_fn=<NllLossBackward0>)",
        "{i}\t{loss:.4f}",
        "{i} {loss:.4f}",
        "({i}, {loss:.4f})",
        "tensor({loss:.4f}, grad_fn=<DivBackward0>)",
    ],
)
def test_a_loss_that_is_printed_without_a_name(tmp_path: Path, row: str) -> None:
    """``print(i, loss)``: the step and a loss that falls, and turns NaN."""
    losses = [3 - i / 50 if i < 40 else float("nan") for i in range(60)]
    (tmp_path / "a.log").write_text("".join(row.format(i=i, loss=v) + "\n" for i, v in enumerate(losses)))
    run = postmortem.load(tmp_path / "a.log")
    assert list(run.roles.values()) == ["loss"]
    assert run.frame["step"].tolist() == list(range(60))
    (found,) = [f for judged in postmortem.scan(tmp_path).runs for f in judged.findings if f.name == "nan-onset"]
    assert found.tag == next(iter(run.roles))
    if "{i}" in row:
        assert found.step == 40


def test_two_columns_of_anything_are_no_loss(tmp_path: Path) -> None:
    """Numbers that do not fall have no role; a first column that does not rise evenly makes no log."""
    (tmp_path / "a.log").write_text("".join(f"{i} {1 + i / 50:.4f}\n" for i in range(60)))
    assert list(postmortem.load(tmp_path / "a.log").roles.values()) == [None]
    (tmp_path / "b.log").write_text("".join(f"{i * i % 97} {3 - i / 50:.4f}\n" for i in range(60)))
    assert postmortem.load(tmp_path / "b.log").roles == {}


def test_the_table_of_two_columns_under_a_header(tmp_path: Path) -> None:
    """A tab between a step and a loss is a table with names."""
    found = points(tmp_path, "step\tloss\n" + "".join(f"{i}\t{3 - i / 50:.4f}\n" for i in range(30)))
    assert list(found) == ["loss"]
    assert found["loss"][:2] == [(0, 3.0), (1, 2.98)]


def test_llm_c(tmp_path: Path) -> None:
    """Scores in brackets after a value are remarks, a rate names itself, and the norm is that of the gradient."""
    row = (
        "step {i:4d}/40 | loss {loss:.6f} (-0.50z)| norm {norm:.4f} (+0.12z)| lr 3.00e-06 | 3020.36 ms"
        " | 55.5% bf16 MFU | {i}83 tok/s\n"
    )
    found = points(tmp_path, "".join(row.format(i=i, loss=9 - i / 50, norm=2 + i % 3) for i in range(1, 31)))
    assert {tag: values[0] for tag, values in found.items()} == {
        "loss": (1, 8.98),
        "norm": (1, 3.0),
        "lr": (1, 3e-6),
        "tok/s": (1, 183.0),
    }
    assert postmortem.load(tmp_path / "train.out").roles["norm"] == "grad_norm"


def test_the_split_without_a_loss_takes_it_from_the_value_before(tmp_path: Path) -> None:
    """``train loss 2.3, val 2.4`` and LitGPT's ``loss train: 2.3, val: 2.4`` name the loss once."""
    for row, tag in (("train loss {a}, val {b}", "val loss"), ("loss train: {a}, val: {b}", "loss val")):
        found = points(tmp_path, "".join(f"step {i} | " + row.format(a=3 - i / 50, b=3.1) + "\n" for i in range(20)))
        assert found[tag][0] == (0, 3.1)


def test_memory_and_times_on_lines_of_their_own(tmp_path: Path) -> None:
    """They belong to the epoch above them, and have roles."""
    rows = (
        f"Epoch {e}: Loss {2 - e / 50:.3f}\nAllocated: {4 + e / 10:.2f} GB\nData loading: 1.9s\n" for e in range(20)
    )
    found = points(tmp_path, "".join(rows))
    assert found["Allocated"][-1] == (19, 5.9)
    roles = postmortem.load(tmp_path / "train.out").roles
    assert (roles["Allocated"], roles["Data loading"]) == ("memory", "data_time")


def test_code_and_messages_are_no_metrics(tmp_path: Path) -> None:
    """Lines of code in a traceback, with or without a rank in front, and a skipped batch hold no points."""
    code = (
        'Traceback (most recent call last):\n  File "/x/train.py", line 3, in <module>\n    main(epochs=10, lr=0.1)\n'
        '  File "/x/train.py", line 9, in main\n    if mode == "a": return nn.Linear(50, 10)(x)\n'
        '  File "/x/train.py", line 9, in main\n    loss = 0.5 * loss_a + loss_b\nValueError: no\n'
    )
    lines = "".join(f"step {i} loss {3 - i / 50}\n" for i in range(20))
    found = points(
        tmp_path, lines + "non-finite loss nan, skipping batch 19\n" + code + code.replace("    ", "[rank1]:     ")
    )
    assert list(found) == ["loss"]
    assert len(found["loss"]) == 20


def test_indented_metrics_are_no_code(tmp_path: Path) -> None:
    """What looks a little like code but names numbers stays a metric."""
    rows = (
        f"step {i}\n  loss = {3 - i / 50}\n  speed = 300 tok/s\n  acc = 0.5 (best 0.6)\n  for train: lr 0.1\n"
        for i in range(20)
    )
    assert {"loss", "speed (tok/s)", "acc"} <= set(points(tmp_path, "".join(rows)))


def test_yolo_results(tmp_path: Path) -> None:
    """results.txt of YOLOv7: the columns are known, epochs count from 0."""
    row = (
        "{e:>10}/39     1.81G   {box:.5f}   0.02000   0.01000   {total:.5f}    120    640"
        "   0.5  0.4  {map:.3f}  0.2  0.07  0.02  0.01\n"
    )
    (tmp_path / "results.txt").write_text(
        "".join(row.format(e=e, box=0.07, total=0.1 - e / 500, map=e / 40) for e in range(40))
    )
    run = postmortem.load(tmp_path / "results.txt")
    assert run.frame["step"].tolist()[-1] == 39
    roles = run.roles
    assert (roles["train/total_loss"], roles["metrics/mAP_0.5"], roles["val/box_loss"]) == (
        "loss",
        "val_accuracy",
        "val_loss",
    )
    assert roles["gpu_mem"] == "memory"


@pytest.mark.parametrize(
    ("row", "tag"),
    [
        ("Testing performance in val model: mean_dice : {v}, best_dice : 0.5", "Testing mean_dice"),
        ("Retrieved metric value! <val/acc_best={v}>", "val/acc_best"),
        ("loss {v} = 0.4 + 0.1 + 0.0 avg prob of [ a long target ] 0.004", "loss"),
    ],
)
def test_a_few_words_around_a_known_metric(tmp_path: Path, row: str, tag: str) -> None:
    """A sentence that tells a known metric as a pair, or begins with it, is a row of metrics."""
    found = points(tmp_path, "".join(row.format(v=0.5 + i / 100) + "\n" for i in range(10)))
    assert [round(value, 2) for _, value in found[tag]] == [round(0.5 + i / 100, 2) for i in range(10)]


def test_the_scale_of_a_skipped_step_is_no_loss_scale(tmp_path: Path) -> None:
    """DeepSpeed's message about an overflow is an event; the scale that was attempted is not the one in use."""
    row = "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768.0\n"
    assert list(points(tmp_path, "".join(f"step {i} loss {3 - i / 50}\n" + row for i in range(5)))) == ["loss"]


def test_a_block_of_results_under_a_header_with_a_symbol(tmp_path: Path) -> None:
    """The loss below ``📊 Evaluation Results:`` is that of the evaluation, not of the training."""
    block = "📊 Evaluation Results:\n   Loss: {v}\n   Perplexity: 1.7\n"
    rows = [f"Step {i}: Loss: {3 - i / 50}\n" + (block.format(v=2.5 + i) if i % 10 == 9 else "") for i in range(30)]
    found = points(tmp_path, "".join(rows))
    assert len(found["Loss"]) == 30
    assert [value for _, value in found["Evaluation Loss"]] == [11.5, 21.5, 31.5]


@pytest.mark.parametrize(
    ("sentence", "tag"),
    [
        ("Epoch 00003: reducing learning rate of group 0 to 1.0000e-04.", "learning rate"),
        ("Reducing learning rate of group 0 to 1e-4.", "learning rate"),
        ("Adjusting learning rate of group 1 to 1.0000e-04.", "learning rate (group 1)"),
        ("Epoch 3: ReduceLROnPlateau reducing learning rate to 0.0001.", "learning rate"),
        ("ReduceLROnPlateau reducing learning rate to 9.999999747378752e-05.", "learning rate"),
    ],
)
def test_a_new_learning_rate_is_a_point_at_the_last_position(tmp_path: Path, sentence: str, tag: str) -> None:
    """The epoch in the sentence counts calls of the scheduler from one; here the program counts from zero."""
    rows = [f"epoch {e} loss {1 / (e + 1):.4f}\n" for e in range(6)]
    found = points(tmp_path, "".join([*rows[:3], sentence + "\n", *rows[3:]]))
    assert found[tag] == [(2, pytest.approx(1e-4, rel=1e-6))]
    assert [step for step, _ in found["loss"]] == list(range(6))
    assert set(found) == {"loss", tag}


def test_an_object_that_is_printed_over_several_lines_is_no_metric(tmp_path: Path) -> None:
    """The arguments of a training, a field a line."""
    rows = "".join(f"step {i}: loss 0.{9 - i}, learning_rate 0.1\n" for i in range(6))
    found = points(tmp_path, "TrainingArguments(\nlearning_rate=0.0003,\nmax_grad_norm=1.0,\n)\n" + rows)
    assert [value for _, value in found["learning_rate"]] == [0.1] * 6


def test_a_line_that_sums_up_an_epoch_is_no_step(tmp_path: Path) -> None:
    """flair: the mean of the epoch has the name of the loss of its steps."""
    rows = ""
    for e in range(1, 5):
        rows += "".join(f"epoch {e} - iter {i}/40 - loss 0.{90 - 10 * e - i // 10}{e}\n" for i in range(10, 50, 10))
        rows += f"EPOCH {e} done: loss 0.{95 - 10 * e} - lr 0.1\n"
    found = points(tmp_path, rows)
    assert (len(found["loss"]), len(found["summary loss"])) == (16, 4)


def test_a_table_under_a_commented_header(tmp_path: Path) -> None:
    """DeePMD: the numbers fill the column of the mark once the steps have seven digits."""
    rows = [f"{1000 * i:7d}      {3 - i / 1000:.2e}      1.0e-03\n" for i in range(995, 1005)]
    found = points(tmp_path, "#  step      rmse_trn         lr\n" + "".join(rows))
    assert [step for step, _ in found["rmse_trn"]] == [1000 * i for i in range(995, 1005)]


def test_scores_of_held_out_data_say_so(tmp_path: Path) -> None:
    """The word at the head of the row holds for its scores as for its losses."""
    rows = "".join(
        f"TRAIN epoch {i}, loss = 0.{9 - i}\nTEST epoch {i}, loss = 0.{9 - i}5, acc = 5{i}.1%\n" for i in range(6)
    )
    assert {"loss", "TEST loss", "TEST acc"} <= set(points(tmp_path, rows))


def test_a_row_with_the_configuration_is_no_step(tmp_path: Path) -> None:
    """What is planned is no place of the training."""
    rows = "".join(f"iter {i} valueLoss=0.{9 - i} lr=0.04\n" for i in range(1, 8))
    found = points(tmp_path, "config: games/iter=200 lr=0.05->0.005 iters=80\n" + rows)
    assert [step for step, _ in found["valueLoss"]] == list(range(1, 8))
    assert len(found["lr"]) == 7


def test_blocks_of_an_epoch_keep_their_splits_apart(tmp_path: Path) -> None:
    """``Train:`` and ``Valid:`` stand above rows of the same names, a name and its number in each."""
    block = "==== Epoch {e} ====\n    Train:\n        loss      {a:.4f}\n        accuracy  {c:.3f}\n"
    block += "    Valid:\n        loss      {b:.4f}\n        accuracy  {c:.3f}\n"
    text = "".join(block.format(e=e, a=2 / e, b=3 / e, c=1 - 0.7 / e) for e in range(1, 21))
    (tmp_path / "train.log").write_text(text)
    run = postmortem.load(tmp_path)
    found = {role: run.frame[run.frame.tag == tag] for tag, role in run.roles.items()}
    assert set(found) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert found["loss"].value.tolist() == [round(2 / e, 4) for e in range(1, 21)]
    assert found["val_loss"].value.tolist() == [round(3 / e, 4) for e in range(1, 21)]
    assert found["val_loss"].step.tolist() == list(range(1, 21))
