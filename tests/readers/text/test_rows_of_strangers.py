"""Print styles that were first seen in logs of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import postmortem

if TYPE_CHECKING:
    from pathlib import Path


def _run(tmp_path: Path, rows: list[str], end: str = "\n") -> postmortem.Run:
    path = tmp_path / "train.log"
    path.write_text(end.join(rows) + "\n")
    return postmortem.load(path)


def test_rows_without_a_line_break(tmp_path: Path) -> None:
    """A print that ends no line leaves several rows in one: the numbers at their heads count on."""
    rows = [f"[{e:03d}] train_loss: {2 / e:.3f} | dev_loss: {1 + 1 / e:.3f} | f1: 0.{60 + e}" for e in range(1, 21)]
    run = _run(tmp_path, [*rows[:3], " ".join(rows[3:9]), " ".join(rows[9:])])
    assert run.series("train_loss").index.tolist() == list(range(1, 21))
    assert run.series("dev_loss").iloc[-1] == 1.05


def test_numbers_that_do_not_count_on_cut_no_line(tmp_path: Path) -> None:
    """The same words before two numbers are not two rows: ``[3] loss: 0.5 [3] loss: 0.4``."""
    run = _run(tmp_path, [f"[{e}] loss: {2 / e:.3f}, [{e}] loss: {3 / e:.3f}" for e in range(1, 11)])
    assert set(run.frame.step) == set(range(1, 11))


def test_a_heading_before_pairs(tmp_path: Path) -> None:
    """``Averaged stats: lr: 0.0000  loss: 0.59`` is a row of metrics; a rate of too few decimals is no dead one."""
    rows = []
    for e in range(10):
        rows += [
            f"Start training epoch {e}, 3511 iters per inner epoch.",
            f"Averaged stats: lr: 0.0000  loss: {1 / (e + 1):.4f}",
        ]
    run = _run(tmp_path, rows)
    assert run.series("loss").index.tolist() == list(range(10))
    assert not postmortem.scan(tmp_path).runs[0].findings


def test_an_abbreviation_is_part_of_the_name(tmp_path: Path) -> None:
    """``Avg. Loss`` is not ``Loss``: the mean of an epoch is no point of the series of batches."""
    rows = []
    for e in range(1, 13):
        rows += [f"===> Epoch[{e}]({n}/500): Loss: {2 / e:.4f}" for n in range(100, 501, 100)]
        rows.append(f"===> Epoch {e} Complete: Avg. Loss: {2.1 / e:.4f}")
    run = _run(tmp_path, rows)
    assert run.series("Avg. Loss").index.tolist() == list(range(1, 13))
    assert len(run.series("Loss")) == 60


def test_a_mean_that_is_not_finite(tmp_path: Path) -> None:
    """``loss: 44.5 (inf)``: a value between two prints was infinite. The value that is printed stays finite."""
    rows = [
        f"Epoch: [0]  [{n:3d}/577]  lr: 0.0001  loss: {40 - n / 100:.4f} ({'inf' if n >= 60 else 41 - n / 100})"
        for n in range(0, 200, 10)
    ]
    run = _run(tmp_path, rows)
    assert np.isfinite(run.series("loss")).all()
    mean = run.series("loss (mean)")
    assert mean.index[0] == 60
    assert np.isinf(mean).all()
    [report] = postmortem.scan(tmp_path).runs
    assert ("inf-onset", "loss (mean)", 60) in {(f.name, f.tag, f.step) for f in report.findings}


def test_a_mean_of_a_test_pass_that_is_not_finite(tmp_path: Path) -> None:
    """The rows of an unfinished test pass count only for what they have lost for good."""
    rows = [f"Epoch: [0]  [{n}/20]  loss: {40 - n:.4f} ({40 - n / 2:.4f})" for n in range(0, 20, 2)]
    rows += [f"Test:  [{n:3d}/242]  loss: 44.5 ({'inf' if n >= 60 else 43.5})" for n in range(0, 90, 10)]
    run = _run(tmp_path, rows)
    tag = next(t for t, role in run.roles.items() if role == "val_loss")
    assert np.isinf(run.series(tag)).all()


def test_scores_behind_a_loss_of_held_out_data(tmp_path: Path) -> None:
    """In a row that begins with a loss of held-out data and has none of the training, scores are of the same data."""
    rows = []
    for e in range(1, 8):
        rows += [f"Epoch {e}", f"avg. train_loss {3 / e:.3f}"]
        rows.append(f"avg. test_loss {2 / e:.3f} avg. Accuracy@1 {20 + e}.5 - avg. Accuracy@5 {40 + e}.5")
    run = _run(tmp_path, rows)
    assert {role for tag, role in run.roles.items() if "Accuracy" in tag} == {"val_accuracy"}


@pytest.mark.parametrize("row", ["val_loss 0.5 train_acc 0.9", "loss 0.4 acc 0.8 val_loss 0.5 val_acc 0.7"])
def test_scores_that_name_their_data_keep_their_names(tmp_path: Path, row: str) -> None:
    """Only a name without a word for the data takes that of the loss before it."""
    run = _run(tmp_path, [f"epoch {e} {row}" for e in range(1, 10)])
    assert "val train_acc" not in run.roles
    assert "val acc" not in run.roles


def test_errors_beside_a_loss(tmp_path: Path) -> None:
    """MAE and RMSE are losses only where no loss is named."""
    run = _run(
        tmp_path, [f"epoch {e} loss {3 / e:.4f} MAE {2 / e:.4f} validation_rmse {1 / e:.4f}" for e in range(1, 20)]
    )
    assert (run.roles["loss"], run.roles["MAE"], run.roles["validation_rmse"]) == ("loss", None, None)
    (tmp_path / "train.log").unlink()
    run = _run(tmp_path, [f"epoch {e} MAE {2 / e:.4f}" for e in range(1, 20)])
    assert run.roles["MAE"] == "loss"


def test_an_ordinal_at_the_head(tmp_path: Path) -> None:
    """``3th epoch`` is the epoch 3; ``2nd place`` is no position."""
    run = _run(tmp_path, [f"{e}th epoch, train loss: {2 / e:.4f}, val loss: {2.2 / e:.4f}" for e in range(1, 25)])
    assert run.series("train loss").index.tolist() == list(range(1, 25))
    assert run.step_axis == "epoch"
    (tmp_path / "train.log").unlink()
    run = _run(tmp_path, [f"{e}nd place, loss: {2 / e:.4f}" for e in range(1, 25)])
    assert run.step_axis == "row"


def test_a_heading_that_counts_what_is_done(tmp_path: Path) -> None:
    """``After 100 steps:`` is the position of the rows below; ``after 100 steps of warm-up`` is a sentence."""
    rows = [
        row
        for k in range(100, 2100, 100)
        for row in (f"after {k} steps:", f"train loss {200 / k:.4f}, val loss {220 / k:.4f}")
    ]
    run = _run(tmp_path, ["the rate falls after 500 steps of warm-up", *rows])
    assert run.series("train loss").index.tolist() == list(range(100, 2100, 100))


def test_darknet(tmp_path: Path) -> None:
    """Its rows name values after them, the first not at all, and "loss" only in some versions."""
    for word in ("avg", "avg loss"):
        region = "Region 82 Avg IOU: -nan, Class: -nan, Obj: -nan, No Obj: 0.53, .5R: -nan, .75R: -nan,  count: 0"
        rows = [
            row
            for i in range(1, 40)
            for row in (region, f"{i}: {900 / i:.4f}, {1000 / i:.4f} {word}, 0.00100 rate, 0.19 seconds, {i} images")
        ]
        run = _run(tmp_path, ["Learning Rate: 0.001, Momentum: 0.9, Decay: 0.0005", *rows])
        assert (run.roles["loss"], run.roles["avg loss"], run.roles["rate"]) == ("loss", "loss", "lr")
        assert run.series("avg loss").index.tolist() == list(range(1, 40))
        assert run.series("loss").iloc[1] == 450
        (tmp_path / "train.log").unlink()


def test_a_level_in_brackets_before_a_colon_and_two_tables(tmp_path: Path) -> None:
    """``[INFO]:`` is a prefix; the rows below the head of another table are none of the first one."""
    rows = []
    for e in range(4):
        rows.append("2021-01-25 05:58:00 [INFO]:    Epoch       Batch       box      conf     total      time")
        rows += [
            f"2021-01-25 05:58:59 [INFO]:     {e}/4  {n:10d}/160     0.227      {2.5 - e:.2f}       {9 - e}      59.6"
            for n in range(0, 160, 40)
        ]
        rows.append("      Image      Total          P          R        mAP")
        rows += [f"       {n}      30353    0.00108    0.00216    0.00108       2.01s" for n in (32, 1312)]
    run = _run(tmp_path, rows)
    assert run.series("conf").index.tolist() == [e * 160 + n for e in range(4) for n in range(0, 160, 40)]
    assert run.frame.step.max() < 640


def test_rows_of_names_below_the_head_of_a_training(tmp_path: Path) -> None:
    """A class named ``2c`` is no epoch 2: a counter has no unit."""
    rows = ["      Epoch    gpu mem   box_loss   cls_loss"]
    rows += [f"      {e}/9      2.35      {2 / e:.3f}      {3 / e:.3f}" for e in range(1, 10)]
    rows += [f"      {e}c      172      197      0.734" for e in (2, 3, 4)]
    assert _run(tmp_path, rows).series("box_loss").max() == 2.0


def test_blank_lines_hide_no_dialect(tmp_path: Path) -> None:
    """W&B keeps only line ends of what a bar redraws: hundreds of them come before the first row."""
    head = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size"
    rows = ["Freezing layer 'model.22.dfl.conv.weight'", *[""] * 600]
    for e in range(1, 9):
        rows += [
            head,
            *[""] * 50,
            f"      {e}/8      2.35G      {2 / e:.3f}      2.6     0.9         23        640: 100%|##|",
        ]
    assert _run(tmp_path, rows).series("box_loss").index.tolist() == list(range(1, 9))


@pytest.mark.parametrize(
    "end",
    [
        "Early stopping due to validation loss not improving for 20 epochs",
        "-----completing training in 113880.80 seconds-----",
        "Finetuned model saved: final.pth",
        "Early stopped",
    ],
)
def test_last_words_of_a_training(tmp_path: Path, end: str) -> None:
    """A program of one's own says in its own words that it has ended, before the planned number of epochs."""
    rows = [f"Epoch {e}/100, Training loss: {2 / e:.4f}, Validation loss: {3 / e:.4f}" for e in range(1, 41)]
    _run(tmp_path, rows)
    assert [f.name for f in postmortem.scan(tmp_path).runs[0].findings] == ["silent-death"]
    assert _run(tmp_path, [*rows, end]).ended == "completed"
    assert not postmortem.scan(tmp_path).runs[0].findings


@pytest.mark.parametrize(
    "row", ["Loss at step {n}: {v}", "Training loss at iteration {n} = {v}", "loss after epoch {n} is {v}"]
)
def test_the_position_between_a_name_and_its_value(tmp_path: Path, row: str) -> None:
    """``Loss at step 12: 6.15`` is a loss of 6.15 at step 12, not one of 12."""
    run = _run(tmp_path, [row.format(n=n, v=9 - n / 4) for n in range(1, 13)])
    (tag,) = set(run.frame.tag)
    assert run.roles[tag] == "loss"
    assert run.series(tag).to_dict() == {n: 9 - n / 4 for n in range(1, 13)}


def test_the_best_so_far_is_no_value_of_the_step(tmp_path: Path) -> None:
    """``current best: recall: 0.0, train_loss: inf`` is what a program begins with, not an infinite loss."""
    rows = []
    for e in range(1, 9):
        rows += [f"[{e}/8], train_loss: {3 / e:.3f}, time: 1.2"]
        rows += [f"current best:recall: 0.{e}, hmean: 0.{e}, train_loss: {'inf' if e < 3 else 0.9}, model_epoch: {e}"]
    run = _run(tmp_path, rows)
    assert np.isfinite(run.series("train_loss")).all()
    assert postmortem.scan(tmp_path).runs[0].verdict == "healthy"


def test_the_iteration_beside_the_epoch_and_its_batch(tmp_path: Path) -> None:
    """OpenPCDet's rows: an epoch, the batch in it, each with a share, and the iteration under a name of its own."""
    rows = [
        f"Train:  {e:3d}/4 ({25 * e:3d}%) [{b:4d}/200 (5%)]  Loss: {9 / (200 * (e - 1) + b + 1):.4g} (1.3e+03)"
        f"  LR: 3.3e-05"
        for e in range(1, 5)
        for b in range(0, 200, 20)
    ]
    run = _run(tmp_path, rows)
    assert run.series("Loss").index.is_unique
    assert len(run.series("Loss")) == 40
    run = _run(tmp_path, [f"{row}  Acc_iter {20 * i + 1}  Data time: 0.1(0.1)" for i, row in enumerate(rows)])
    assert run.series("Loss").index.tolist() == list(range(1, 801, 20))


def test_a_batch_size_of_the_configuration_is_no_step(tmp_path: Path) -> None:
    settings = "data_set=movies, factor=64, loss_type=log_loss, #epoch=50, batch=512, lr=0.05, optimizer=Adam, act=relu"
    rows = [f"Epoch {e} [4.9 s]\ttrain={2 / e:.4f}, validation={2.1 / e:.4f} [1.8 s]" for e in range(1, 31)]
    for head in (settings, "batch=512"):
        run = _run(tmp_path, [head, *rows, "Best Iter(validation)= 28\t train = 0.0714, validation = 0.0750"])
        assert run.series("train").index.tolist() == list(range(1, 31))
        assert run.series("train").iloc[-1] == round(2 / 30, 4)


def test_a_logger_and_a_level_with_a_colon_before_a_score(tmp_path: Path) -> None:
    rows = []
    for e in range(5, 65, 5):
        rows += [f"Validation Results - Epoch: {e}", f"mAP: {60 + e / 10:.1f}%"]
    run = _run(tmp_path, [f"2026-06-15 20:54:06 net.train INFO: {row}" for row in rows])
    assert run.series("mAP").index.tolist() == list(range(5, 65, 5))


def test_a_phase_of_epochs_before_one_of_batches(tmp_path: Path) -> None:
    """The counter starts over where the second optimizer is announced, behind the tag of a program in brackets."""
    rows = ["[v2] === Stage 1: Adam ==="]
    rows += [f"[Adam-v2] ep= {e:4d}  total={2 / e + 0.5:.3e}  PDE=1.2e-2" for e in range(20, 2001, 20)]
    rows.append("[v2] === Stage 2: quasi-Newton ===")
    rows += [f"[BFGS] batch= {b:4d}  call= {9 * b}  total={0.5 - b / 1e3:.3e}" for b in range(1, 60)]
    _run(tmp_path, rows)
    (found,) = (f for f in postmortem.scan(tmp_path).runs[0].findings if f.name == "step-reset")
    assert found.severity == "info"
    assert "Stage 2" in found.message


def test_numbers_between_rules_are_epochs(tmp_path: Path) -> None:
    """``-----3------`` heads the rows of an epoch."""
    rows = [line for e in range(12) for line in (f"-----{e}------", f"train_mean loss: {2 / (e + 1):.4f}")]
    run = _run(tmp_path, rows)
    assert run.step_axis == "epoch"
    assert run.series("train_mean loss").index.tolist() == list(range(12))


def test_conlleval_of_two_sets(tmp_path: Path) -> None:
    """A heading above each report names its data; one name for both would swing between the two."""
    rows = []
    for n in range(1, 9):
        rows += [f"step {100 * n}, NER loss: {30 / n:.4f}"]
        for word, off in (("dev", 0.0), ("test", 5.0)):
            f1 = 60 + n + off
            rows += [f"evaluate:{word}", f"processed 5 tokens with 3 phrases; found: {n} phrases; correct: 2.", ""]
            rows += [f"accuracy:  9{n}.00%; precision:  {f1:.2f}%; recall:  {f1 - 1:.2f}%; FB1:  {f1:.2f}", ""]
            rows += [f"              LOC: precision:  {f1 - 3:.2f}%; recall:  50.00%; FB1:  {f1 - 4:.2f}  1669", ""]
    run = _run(tmp_path, rows)
    assert run.series("dev FB1").tolist() == [61.0 + n for n in range(8)]
    assert run.series("test FB1").tolist() == [66.0 + n for n in range(8)]
    assert len(run.series("test LOC precision")) == 8


def test_an_epoch_and_a_counter_with_a_colon(tmp_path: Path) -> None:
    """``[2 :  89000] loss G : 2.131``, as ``[2, 89000]``; what NCCL prints of a node is no metric."""
    rows = [
        f"[{e} : {n:>6}] loss G : {5 / (e + 1):.3f} loss D : -0.{n // 100}" for e in range(3) for n in (100, 200, 300)
    ]
    rows.insert(0, "gpu-a800-0070:7543:7543 [7] NCCL INFO cudaDriverVersion 11080")
    run = _run(tmp_path, rows)
    assert set(run.frame.tag) == {"loss G", "loss D"}
    assert run.series("loss G").index.tolist() == [100, 200, 300, 400, 500, 600, 700, 800, 900]


@pytest.mark.parametrize("style", ["E{0:3}/500 | Loss:{1:.3f}", "it{0:3}/500: loss={1:.3f}", "[step{0}] loss: {1:.3f}"])
def test_a_counter_without_a_blank_before_its_number(tmp_path: Path, style: str) -> None:
    """``E 99/500`` is followed by ``E100/500`` where the number is printed with a width."""
    run = _run(tmp_path, [style.format(n, 5 / n) for n in range(95, 130)])
    assert run.frame.step.tolist() == list(range(95, 130))


def test_the_code_of_an_error_is_no_epoch(tmp_path: Path) -> None:
    rows = [f"E{n} duplicate key: retried, train loss was {5 / n:.3f}" for n in (11000, 11001)]
    assert 11000 not in set(_run(tmp_path, [*rows, *(f"epoch {e} loss {2 / e:.3f}" for e in range(1, 9))]).frame.step)


def test_the_label_of_a_row_names_its_data(tmp_path: Path) -> None:
    """``[A-Val(Test)]`` is no sentence, and its words tell a validation loss."""
    rows = []
    for e in range(1, 13):
        rows.append(f"2026-05-12 12:21:02,065 - INFO - [Train] Epoch {e:03d}: loss = {2 / e:.4f}")
        rows.append(f"2026-05-12 12:21:12,170 - INFO - [A-Val(Test)] Epoch {e:03d} (Deterministic): loss = {3 / e:.4f}")
    run = _run(tmp_path, rows)
    assert {tag: (run.roles[tag], len(run.series(tag))) for tag in run.roles} == {
        "loss": ("loss", 12),
        "Val loss": ("val_loss", 12),
    }


@pytest.mark.parametrize(
    ("form", "tag", "last"),
    [
        ("{k} [D loss: {v:.6f}, acc.: 56.25%] [G loss: 1.28]", "D loss", 5900),
        ("epoch id: {i}, batch no: 3, loss: {v:.6f}", "loss", None),
        ("epoch{k}\t{v:.6f}", "unnamed number", 5900),
        ("Epoch: [{i}][9/10]\tLoss {v:.4f}\n * ERR 24.7 LOSS {v:.3f}", "eval LOSS", None),
    ],
)
def test_counters_and_summaries_of_strangers(tmp_path, form, tag, last):
    """A count before brackets, counters named as numbers, rows of an epoch and a number, a starred summary."""
    rows = [form.format(i=i, k=100 * i, v=2 / (i + 1)) for i in range(60)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    run = postmortem.load(tmp_path)
    assert run.roles[tag] == ("val_loss" if tag == "eval LOSS" else "loss")
    assert set(run.roles) <= {tag, "acc.", "G loss", "ERR", "Loss"}
    assert last is None or run.frame[run.frame.tag == tag].step.tolist() == list(range(0, last + 1, 100))
