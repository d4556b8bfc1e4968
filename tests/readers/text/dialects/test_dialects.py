"""Dialects: what each makes of a few lines of its format."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

import postmortem
from postmortem.readers.text import read_text
from postmortem.readers.text.dialects import DIALECTS
from postmortem.readers.text.dialects.column_table import ColumnTable
from postmortem.readers.text.lines.prefixes import NOTHING
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.record import Row
from postmortem.readers.text.records.tokens import LONGEST_ROW

if TYPE_CHECKING:
    from pathlib import Path

MEGATRON = (
    " iteration {i:8d}/     400 | consumed samples: {i} | {loss}loss scale: 1.0 | grad norm: 1.5"
    " | number of nan iterations:   0 |"
)


def _box(*rows: tuple[str, object]) -> str:
    line = "-" * 37 + "\n"
    return line + "".join(f"| {name:<18} | {value:<12} |\n" for name, value in rows) + line


CASES: dict[str, tuple[str, list[tuple[str, int, float]]]] = {
    "megatron": (
        "\n".join(
            [MEGATRON.format(i=i, loss=f"lm loss: {i}.5E+00 | " if i < 40 else "") for i in (10, 20, 30, 40)]
            + [" validation loss at iteration 40 | lm loss value: 5.812345E+00 | lm loss PPL: 3.344022E+02 | "]
            + [" test results at the end of training for test data | lm_loss value: 2.5E+00 | "]
        ),
        [
            ("lm loss", 10, 10.5),
            ("lm loss", 40, math.nan),
            ("validation lm loss", 40, 5.812345),
            ("test lm_loss", 40, 2.5),
            ("grad norm", 40, 1.5),
        ],
    ),
    "deepspeed": (
        "[2026-11-20 12:01:13,370] [INFO] [logging.py:128:log_dist] [Rank 0] "
        "step=10, skipped=2, lr=[6e-06, 1e-05], mom=[(0.9, 0.999)]\n"
        "[2026-11-20 12:01:13,371] [INFO] [timer.py:264:stop] "
        "epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=242.1, MemAllocated=13.22GB\n",
        [("skipped", 10, 2.0), ("lr", 10, 6e-6), ("RunningAvgSamplesPerSec", 10, 242.1), ("MemAllocated", 10, 13.22)],
    ),
    "transformers with a bar": (
        "".join(
            f"\r {n}%|█         | {n}/100 [00:10<01:30,  1.02it/s]\n"
            f"{{'loss': '{3 - n / 100:.3f}', 'grad_norm': 'nan', 'epoch': '{n / 50:.2f}'}}\n"
            for n in range(10, 101, 10)
        ),
        [("loss", 10, 2.9), ("loss", 100, 2.0), ("grad_norm", 50, math.nan), ("epoch", 50, 1.0)],
    ),
    "boxes that count epochs": (
        "".join(_box(("epoch", i), ("test/success_rate", i / 8)) for i in range(4)),
        [("test/success_rate", 0, 0.0), ("test/success_rate", 3, 0.375)],
    ),
    "boxes with their own counters": (
        "".join(_box(("Epoch", i), ("LossV", 9 - i), ("TotalEnvInteracts", 4000 * i)) for i in range(1, 4)),
        [("LossV", 4000, 8.0), ("LossV", 12000, 6.0)],
    ),
    "lightning": (
        "\r".join(
            f"Epoch {e}: {n * 25}%|██   | {n}/4 [00:00<00:00, 301.01it/s, v_num=3, train_loss={e * 4 + n}.5"
            + (f", val_loss={e}.25]" if e else "]")
            for e in range(3)
            for n in range(1, 5)
        ),
        [("train_loss", 1, 1.5), ("train_loss", 12, 12.5), ("val_loss", 5, 1.25), ("val_loss", 9, 2.25)],
    ),
    "a bar with a counter of its own": (
        "\n".join(
            f"Epoch #{e}: 801it [00:20, 480.12it/s, env_step={800 * e}, loss={e}.500, rew={e}.00]" for e in range(1, 5)
        ),
        [("loss", 1600, 2.5), ("rew", 3200, 4.0)],
    ),
    "kaldi": (
        "".join(
            f"LOG (nnet3-train[5.5.2]:Print():nnet-training.cc:34) Average objective function for '{name}' "
            f"for minibatches {n}-{n + 99} is "
            f"{-5 - n / 100:.2f} over 6400 frames.\n"
            for n in range(0, 500, 100)
            for name in ("output", "xent")
        ),
        [("Average objf", 199, -6.0), ("Average objf/xent", 499, -9.0)],
    ),
    "kaldi's scripts": (
        "".join(
            f"2026-11-20 18:42:0{n},289 [steps/nnet3/train.py:493 - train - INFO ] "
            f"Iter: {n}/95    Epoch: 0.{n}0/4.0 ({n}.5% complete)    lr: 0.0009{n}\n"
            for n in range(1, 8)
        ),
        [("lr", 3, 0.00093)],
    ),
    "tqdm-loggable": (
        "".join(
            f"Progress on:train {n}.0it/40.0it rate:1.2it/s remaining:00:30 "
            f"elapsed:00:{n:02d} postfix:loss={9 / n:.3f}\n"
            for n in range(10, 41)
        ),
        [("loss", 12, 0.75), ("loss", 36, 0.25)],
    ),
    "wrapped dict": (
        "".join(f"{{'loss': {i}.5,\n 'note': 'x, y',\n 'step': {i},\n 'acc': 0.{i}}}\nresting\n" for i in range(10, 15))
        + '{\n  "loss": 2.5,\n  "step": 20\n}\n'
        + "{'step': 21,\n 'val': {'loss': 1.5, 'top1': 62.25},\n 'lr': 0.001}\n",
        [("loss", 10, 10.5), ("acc", 14, 0.14), ("loss", 20, 2.5), ("val/top1", 21, 62.25)],
    ),
    "fairseq": (
        "2026-11-20 12:12:10 | INFO | train_inner | epoch 001:   100 / 1250 loss=9.252, num_updates=100, lr=5e-05\n"
        "2026-11-20 14:38:10 | INFO | train | epoch 001 | loss 7.912 | num_updates 1249 | lr 6.245e-04\n"
        '2026-11-20 14:39:10 | INFO | valid | {"epoch": 1, "valid_loss": "6.874", "valid_num_updates": "1249"}\n',
        [("loss", 100, 9.252), ("train loss", 1249, 7.912), ("valid_loss", 1249, 6.874)],
    ),
    "openmmlab": (
        "\n".join(
            f"2026-11-20 12:06:0{e} - mmdet - INFO - Epoch [{e}][{n}/100]\tlr: 1e-05, eta: 9:39:17, loss: {e}.{n}"
            for e in (1, 2)
            for n in (50, 100)
        )
        + "\n2026-11-20 12:07:01 - mmdet - INFO - "
        "Epoch(val) [2][5000]\tbbox_mAP: 0.152, bbox_mAP_copypaste: 0.152 0.287\n",
        [("loss", 50, 1.5), ("loss", 150, 2.5), ("val bbox_mAP", 200, 0.152)],
    ),
    "openmmlab, epochs from 0": (
        "\n".join(
            f"2026-11-20 12:06:0{e} | INFO | Epoch [{e}][{n}/100]  loss: {e}.{n}" for e in (0, 1) for n in (20, 90)
        ),
        [("loss", 20, 0.2), ("loss", 190, 1.9)],
    ),
    "metric logger, summaries of training and validation": (
        "".join(
            f"Train: [{e}/3][0/9] loss 1.{e} (1.{e})\n"
            f" * Train Acc 3{e}.0 Train Loss 1.{e}5\n * Val Acc 4{e}.0 Val Loss 0.{e}5\n"
            for e in range(3)
        ),
        [("Train Loss", 18, 1.25), ("Val Loss", 18, 0.25)],
    ),
    "darts": (
        "".join(
            f"11/20 11:0{e}:00 PM epoch {e} lr 2.5e-02\n"
            + "".join(f"11/20 11:0{e}:1{n} PM train {n * 50:03d} {2.5 - e - n / 10:e} 31.2 80.1\n" for n in range(4))
            + f"11/20 11:0{e}:30 PM valid 000 9.0e+00 11.0 51.0\n11/20 11:0{e}:31 PM valid 050 {2 - e:e} 41.5 91.5\n"
            for e in range(2)
        ),
        [("train_loss", 50, 2.4), ("train_loss", 350, 1.2), ("valid_loss", 400, 1.0), ("valid_top1", 400, 41.5)],
    ),
    "timm": (
        "Train: 3 [  50/1251 (  4%)]  Loss: 6.81 (6.88)  Time: 0.412s, 1242.70/s  (0.431s, 1188.01/s)  LR: 5.000e-04\n"
        "Test: [   0/97]  Loss:   4.812 ( 4.812)  Acc@1:  14.062 ( 14.062)\n"
        "Test: [  97/97]  Loss:   4.702 ( 4.755)  Acc@1:  15.100 ( 14.874)\n",
        [("Loss", 3803, 6.81), ("Test Acc@1", 3803, 14.874), ("Test Loss", 3803, 4.755)],
    ),
    "olmo": (
        "".join(
            f"2026-11-20 12:01:13.001\tnid001234:0\tolmo.train:980\tINFO\t[step={s}/739328,epoch=0]\n"
            f"    train/CE loss={s / 10}\n    System/Peak GPU Memory (MB)=41,210\n"
            for s in (10, 20, 30)
        ),
        [("train/CE loss", 10, 1.0), ("train/CE loss", 30, 3.0), ("System/Peak GPU Memory (MB)", 20, 41210.0)],
    ),
    "composer": (
        "".join(f"[batch={s}/1000]:\n\t Train loss/train/total: {s / 10}\n" for s in (10, 20))
        + "[Eval batch=50/50] Eval on eval data:\n\t Eval metrics/eval/CE: 2.5\n",
        [("loss/train/total", 20, 2.0), ("metrics/eval/CE", 20, 2.5)],
    ),
    "stable-baselines3": (
        "-----------------\n| rollout/        |     |\n|    ep_rew_mean  | 19  |\n"
        "| time/           |     |\n|    total_timesteps | 128 |\n-----------------\n",
        [("rollout/ep_rew_mean", 128, 19.0)],
    ),
    "keras": (
        "".join(
            f"Epoch {e}/2\n" + "".join(f"\r{n}/2 ━━━━ 1s 12ms/step - loss: {e}.{n}" for n in (1, 2)) + "\n"
            for e in (1, 2)
        ),
        [("loss", 1, 1.2), ("loss", 2, 2.2)],
    ),
    "tutorial": (
        "".join(
            f"Epoch {e}\n-----\nloss: {e}.5  [  640/60000]\nTest Error: \n Accuracy: 45.0%, Avg loss: 2.{e} \n\n"
            for e in (1, 2)
        ),
        [("loss", 640, 1.5), ("Test Avg loss", 640, 2.1), ("Test Accuracy", 640, 45.0)],
    ),
}


@pytest.mark.parametrize("fast", [True, False], ids=["by layout", "row by row"])
@pytest.mark.parametrize("name", CASES)
def test_dialect(name: str, fast: bool, tmp_path: Path) -> None:
    """The values of a format are read at their steps, by layout as well as row by row."""
    text, expected = CASES[name]
    path = tmp_path / "train.out"
    path.write_text(text)
    points = read_text(path, fast=fast).points
    found = [(points.tags[c], int(s), float(v)) for c, s, v in zip(points.code, points.step, points.value, strict=True)]
    for tag, step, value in expected:
        assert any(
            t == tag and s == step and (v == value or (math.isnan(v) and math.isnan(value))) for t, s, v in found
        ), f"{tag} at {step} in {found}"


def test_carried_over_values_count_once(tmp_path: Path) -> None:
    """A bar repeats the last validation loss in every state; it was measured once per epoch."""
    text, _ = CASES["lightning"]
    path = tmp_path / "train.out"
    path.write_text(text)
    points = read_text(path).points
    assert (points.value[points.code == points.tags.index("val_loss")] == [1.25, 2.25]).all()
    assert "v_num" not in points.tags


def test_last_state_of_a_position_wins(tmp_path: Path) -> None:
    """Two states of a bar at one position are one point, with the later value."""
    path = tmp_path / "train.out"
    path.write_text(
        "\r".join(
            f"Epoch 0: 50%|██   | {n}/9 [00:00<00:00, 3.0it/s, loss={v}]"
            for n, v in [(1, 0.5), (2, 0.5), (2, 0.4), (3, 0.3)]
        )
    )
    points = read_text(path).points
    assert list(zip(points.step.tolist(), points.value.tolist(), strict=True)) == [(1, 0.5), (2, 0.4), (3, 0.3)]


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "1",
        " ",
        "1 ",
        "[",
        "'a': ",
        '{"a":',
        "a=1 ",
        "1/",
        "1,",
        "|",
        "- ",
        "1.",
        "nan ",
        "step 1 ",
        "| a ",
        "a  ",
        "━",
        "%|",
        "0/1 [",
        "1-",
        "=",
        "(",
    ],
)
def test_no_pattern_backtracks_without_bound(unit: str) -> None:
    """Every dialect and the miner finish a row of 64 KiB made to confuse patterns; backtracking would not end."""
    text = (unit * (LONGEST_ROW // len(unit) + 1))[:LONGEST_ROW]
    for row in (text, text[:-11] + " loss: 0.5"):
        mine(row)
        for dialect in [*(d() for d in DIALECTS), ColumnTable()]:
            dialect.parse(Row(row, NOTHING))
            if dialect.content is not None:
                dialect.content.match(row)


@pytest.mark.parametrize("dialect", list(DIALECTS), ids=lambda d: d.name)
def test_every_dialect_explains_itself(dialect: type) -> None:
    """The docstring shows the format, and the members of the protocol are there."""
    assert dialect.__doc__
    assert len(dialect.__doc__) > 60
    assert dialect.name
    assert not DIALECTS.broken


@pytest.mark.parametrize(
    "time", ["10:12:{i:02d}", "2026-01-02 10:12:{i:02d}", "[10:12:{i:02d}]", "0:00:{i:02d}", "{i}m5s"]
)
@pytest.mark.parametrize("bar", ["| ", ""])
def test_a_table_may_begin_with_a_time(tmp_path: Path, time: str, bar: str) -> None:
    """A time in the first column is no number, and no reason to pass over the row."""
    log = tmp_path / "train.log"
    rows = [f"{bar}{time.format(i=i)} | {10 * i:4d} | 2.{i:02d} | 9.9e-04 |" for i in range(1, 31)]
    log.write_text("\n".join([f"{bar}time | step | xent | lr |", "|------|------|------|----|", *rows]) + "\n")
    points = read_text(log).points
    xent = points.code == points.tags.index("xent")
    assert points.step[xent].tolist() == [10 * i for i in range(1, 31)]


@pytest.mark.parametrize("prefix", ["", "I1120 10:00:00.000000 1402 train.py:88] "])
def test_a_table_between_bars_under_a_step_needs_no_known_metric(tmp_path: Path, prefix: str) -> None:
    """The header comes again and again; no other column than the step has a name that is known."""
    log = tmp_path / "train.log"
    head = ["  step | margin_v | active% | emb_std", "-------+----------+---------+---------"]
    rows = [f"{25 * i:6d} | 0.2{i:02d}   |   64.{i:02d} | 0.1626" for i in range(1, 41)]
    lines = [*head, *rows[:16], *head, *rows[16:], "Training complete"]
    log.write_text("".join(f"{prefix}{line}\n" for line in lines))
    points = read_text(log).points
    assert set(points.tags) == {"margin_v", "active%", "emb_std"}
    some = points.code == points.tags.index("margin_v")
    assert points.step[some].tolist() == [25 * i for i in range(1, 41)]


def test_a_table_under_a_step_whose_cells_are_words_holds_no_metrics(tmp_path: Path) -> None:
    """A plan of the phases, not what was measured."""
    log = tmp_path / "train.log"
    rows = [f"{i} | {word} | prepared" for i, word in enumerate(["data", "model", "optimizer"], 1)]
    log.write_text("\n".join(["step | what | state", *rows]) + "\n")
    assert not read_text(log).points.tags


def test_a_table_may_name_the_split_of_each_row(tmp_path: Path) -> None:
    """The losses of two splits in one column are two metrics."""
    log = tmp_path / "train.log"
    rows = [f"| {split} | {10 * i:4d} | 2.{i:02d} | 0.001 |" for i in range(1, 9) for split in ("train", "val")]
    log.write_text("\n".join(["| phase | step | loss | lr |", "|---|---|---|---|", *rows]) + "\n")
    assert {"train loss", "val loss", "lr"} == set(read_text(log).points.tags)


@pytest.mark.parametrize("sign", [",", ";", "\t"])
@pytest.mark.parametrize("index", ["", "epoch", '"epoch"'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_delimited_table_in_a_log(tmp_path: Path, sign: str, index: str, end: str) -> None:
    """The history of a training is printed at its end; the index of a data frame has no name."""
    log = tmp_path / "train.log"
    header = sign.join([index, "loss", "acc", "val_loss", "val_acc"])
    rows = [sign.join([str(i), f"0.{90 - i}65", f"0.8{i}7", f"0.4{i}1", f"0.7{i}9"]) for i in range(10, 25)]
    lines = ['Model: "sequential"', "Total params: 176,571", "", header, *rows, "", "Results:", "done after 12 s"]
    log.write_bytes(end.join([*lines, ""]).encode())
    points = read_text(log).points
    assert set(points.tags) == {"loss", "acc", "val_loss", "val_acc"}
    loss = points.code == points.tags.index("loss")
    assert points.step[loss].tolist() == list(range(10, 25))
    assert points.value[loss][0] == 0.8065


@pytest.mark.parametrize(
    "style",
    [
        "[2026-11-20 10:00:00 vit_tiny] (main.py 98): INFO Train: [{epoch}/3][{n}/40]\teta 0:10:00 lr 0.0003\t"
        "loss {loss} ({loss})",
        "INFO:root:app Train: [{epoch}/3] [{n:3d}/40] loss {loss}",
        "Train: {epoch} [{n:4d}/40]  Loss: {loss}  LR: 3.000e-04",
        "Train [{epoch}][{n:4d}/40]  Loss: {loss}  LR: 3.000e-04",
        "train ep {epoch} it {n}/40 loss {loss}",
    ],
)
def test_batches_of_an_epoch_count_on_from_epoch_to_epoch(style: str, tmp_path: Path) -> None:
    """The number in front of the batch is the epoch, not a metric: a value that is lost in the second epoch is lost
    after all steps of the first, and no step is overwritten."""
    rows = [(e, n) for e in range(3) for n in range(0, 40, 4)]
    texts = [
        style.format(epoch=e, n=n, loss="nan" if e * 40 + n >= 60 else f"{3 - 0.01 * (e * 40 + n):.4f}")
        for e, n in rows
    ]
    log = tmp_path / "train.log"
    log.write_text("\n".join(texts) + "\n")
    run = postmortem.load(log)
    loss = run.frame[run.frame.tag.str.lower() == "loss"]
    assert loss.step.tolist() == list(range(0, 120, 4))
    assert set(run.frame.tag.str.lower()) <= {"loss", "lr"}
    assert loss.step[loss.value.isna()].min() == 60
