"""The general miner on print styles that no dialect describes.

`data/styles.json` was written before the miner was tuned on it: 22 of its 30 styles (52 of 67 expectations) were read
correctly then. `data/styles_more.json` has lines of our own in the styles of 24 more programs. Of 60 such styles (other
lines, 133 expectations) 37 (88) were correct at first contact, of 25 later ones 17 (35 of 47), of 20 after that 16
(32 of 37), and of 30 after that 20 (37 of 55).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from postmortem.readers.text import read_text
from postmortem.readers.text.records.miner import mine
from postmortem.readers.text.records.step_words import position
from postmortem.readers.text.records.tokens import LONGEST_ROW, number

if TYPE_CHECKING:
    from postmortem.core.reading import Reading

STYLES = [
    s
    for name in ("styles.json", "styles_more.json")
    for s in json.loads((Path(__file__).parent / "data" / name).read_text("utf-8"))
]


def values_of(reading: Reading, tag: str) -> list[tuple[int, float, int]]:
    points = reading.points
    rows = zip(points.code, points.step, points.value, points.rank, strict=True)
    return [(int(s), float(v), int(r)) for c, s, v, r in rows if points.tags[c] == tag]


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9)


@pytest.mark.parametrize("dialects", [(), None], ids=["no dialects", "all dialects"])
@pytest.mark.parametrize("style", STYLES, ids=lambda s: s["name"])
def test_styles_nobody_described(style: dict[str, Any], dialects: tuple[()] | None, tmp_path: Path) -> None:
    """Every expected number of a style is read at its step, and numbers that are no metrics are not."""
    path = tmp_path / "train.log"
    path.write_text(style["text"])
    reading = read_text(path, dialects)
    for expected in style["expected"]:
        found = values_of(reading, expected["tag"])
        assert any(
            same(v, float(expected["value"])) and expected["step"] in (None, s) and expected.get("rank", r) == r
            for s, v, r in found
        ), f"{expected} not in {found}"
    assert not set(style.get("absent", ())) & set(reading.points.tags)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss=1.5", {"loss": 1.5}),
        ("loss: 1,300.5", {"loss": 1300.5}),
        ("acc=81.25%", {"acc": 81.25}),
        ("lr: 1.2e-05 loss: .5", {"lr": 1.2e-5, "loss": 0.5}),
        ("loss 1.23 (1.30) lr 1e-3", {"loss": 1.23, "lr": 1e-3}),
        ("Prec@1  05 50.742 (49.1) Prec@5  12 80.1 (79.5)", {"Prec@1 05": 50.742, "Prec@5 12": 80.1}),
        ("Prec@1  05 50.742", {"Prec@1 05": 50.742}),
        ("acc 5 loss 0.5 (0.4)", {"acc": 5.0, "loss": 0.5}),
        ("tokens=41.94B memory=47.4GiB", {"tokens": 41.94e9, "memory": 47.4}),
        ("loss=-inf x=Infinity y=-nan", {"loss": -math.inf, "x": math.inf, "y": math.nan}),
        ("loss: n/a acc: None lr: 0.1", {"lr": 0.1}),
        ("it 20 loss nan temp 2.7", {"loss": math.nan, "temp": 2.7}),
        ("it 20 loss nan temp nan", {"loss": math.nan}),
        ("step 5 nan count 3 loss 2.0", {"nan count": 3.0, "loss": 2.0}),
        (
            '{"kl": {"mean": 1, "by": {"max": "2.5"}}, "lr": null, "x": NaN}',
            {"kl/mean": 1.0, "kl/by/max": 2.5, "x": math.nan},
        ),
        ("{'loss': tensor(0.41, device='cuda:0'), 'acc': np.float64(0.5)}", {"loss": 0.41, "acc": 0.5}),
        ("step 1 loss 0.5 eta 0:10:00 date 2026-11-20", {"loss": 0.5}),
        (
            "loss: 2.5 tokens: 1204 time: 3.5 s samples=12",
            {"loss": 2.5, "tokens": 1204.0, "time": 3.5, "samples": 12.0},
        ),
        ("loss: 2,506 lr: 0.01", {"loss": 2506.0, "lr": 0.01}),
        ("loss: 0.5 shape: (3,10) kernel_size=[3, 3] size=(1, 3, 224, 224)", {"loss": 0.5}),
        ("step 3 loss 0.5 betas=(0.9, 0.95) grid (8 8 1) resolution: 224 x 224", {"loss": 0.5}),
        ("Changed the rate of the optimizer. Current lr = 0.0005", {"lr": 0.0005}),
        ("No progress in 5 epochs. New learning rate is 1e-05.", {"New learning rate": 1e-5}),
        (
            "[Epoch 2/9] [Losses: x 0.27, cls 0.8, total 15.1, recall: 0.5]",
            {"Losses x": 0.27, "Losses cls": 0.8, "Losses total": 15.1, "recall": 0.5},
        ),
        ("Step 10, Loss: train 0.5, val 0.6", {"train Loss": 0.5, "val Loss": 0.6}),
        ("Step 10 loss: D 0.5 G 0.3 lr 0.1", {"loss D": 0.5, "loss G": 0.3, "lr": 0.1}),
        ("lr: [0.001, 0.0001] loss: [0.5] acc: tensor([0.25])", {"lr": 0.001, "loss": 0.5, "acc": 0.25}),
    ],
)
def test_one_row(text: str, expected: dict[str, float]) -> None:
    """Numbers of one row are found with their names and exact values."""
    record = mine(text)
    assert record is not None
    found = {v.tag: v.number for v in record.values}
    assert found.keys() == expected.keys()
    assert all(same(found[k], expected[k]) for k in expected)


@pytest.mark.parametrize("text", ["step 3: loss nan for 3 iterations", "loss nan detected 2 times at step 5"])
def test_a_count_after_a_nan_is_no_loss(text: str) -> None:
    """Its name would be the metric, its value and more words."""
    record = mine(text)
    assert record is None or not record.values


@pytest.mark.parametrize(
    ("text", "epoch", "epochs"),
    [("第 3 轮 损失=1", 3.0, None), ("第3/4轮 损失=1", 3.0, 4.0)],
)
def test_chinese_ordinals(text: str, epoch: float | None, epochs: float | None) -> None:
    """The number between 第 and its measure word is a position, also as a fraction."""
    record = mine(text)
    assert record is not None
    assert (record.epoch, record.epochs) == (epoch, epochs)
    assert [(v.tag, v.number) for v in record.values] == [("损失", 1.0)]


@pytest.mark.parametrize(
    "text",
    [
        "model has 1431 parameters",
        "starting training for 800 steps",
        'File "train.py", line 63, in main',
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "RuntimeError: The size of tensor a (13) must match the size of tensor b (12)",
        "Input shape: (3, 224, 224)",
        "Conv2d kernel_size=[3, 3], stride=(1, 1)",
        "mean: [0.485, 0.456, 0.406] std: [0.229, 0.224, 0.225]",
        "Metric did not get better for a long time. Best loss = 0.5 of all",
        "GPU 3 has a total capacity of 79.33 GiB of which 640.19 MiB is free",
    ],
)
def test_sentences_are_no_metrics(text: str) -> None:
    """Numbers in sentences are not taken for metrics."""
    record = mine(text)
    assert record is None or not record.values


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("global_step", "step"), ("Iteration", "step"), ("train/epoch", None), ("Epoch", "epoch"), ("val step", "step"),
        ("max_steps", ""), ("warmup steps", None), ("rank", "rank"), ("eta", ""), ("loss", None),
        ("skipped iterations", None), ("num_updates", "step"),
        ("completed step", "step"), ("completed_steps", "step"), ("nupdates", "step"),
    ],
)  # fmt: skip
def test_position_words(name: str, kind: str | None) -> None:
    """A name is a position, a word that is no metric, or a metric."""
    found = position(name)
    assert (found[0] if found else None) == kind


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,300", 1300.0),
        ("-nan(ind)", math.nan),
        ("1.#INF", math.inf),
        ("-1.#INF", -math.inf),
        ("+0.5", 0.5),
        ("-NaN", math.nan),
    ],
)
def test_spellings_of_numbers(text: str, value: float) -> None:
    """C and Python spell numbers in different ways."""
    assert same(number(text), value) or number(text) == value


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 400 + ".5", "-" + "9" * 5000, "1e" + "9" * 400])
def test_numbers_of_hundreds_of_digits(digits: str, tmp_path: Path) -> None:
    """They are read as float() reads them, also beside similar rows; as steps, epochs and ranks they are dropped."""
    log = tmp_path / "train.log"
    rows = [f"step {i} loss: {2 / (i + 1):.3f} tokens: {digits if i % 7 == 3 else i}" for i in range(60)]
    log.write_text(
        "\n".join(
            [*rows, f"step {digits} loss: 1.5", f"Epoch {digits} loss: 1.5", f"[rank{digits}]: step 60 loss: 0.033"]
        )
        + "\n"
    )
    found = values_of(read_text(log), "tokens")
    assert [v for _, v, _ in found] == [float(digits) if i % 7 == 3 else i for i in range(60)]
    losses = values_of(read_text(log), "loss")
    assert [v for _, v, _ in losses[:60]] == [round(2 / (i + 1), 3) for i in range(60)]
    assert {rank for _, _, rank in losses} == {-1}


def test_a_long_row_is_bounded() -> None:
    """Text past the longest row that is read is not searched."""
    record = mine("loss=1 " + "x" * (2 * LONGEST_ROW) + " acc=2", demand=False)
    assert record is not None
    assert [v.tag for v in record.values] == ["loss"]


@pytest.mark.parametrize(
    ("row", "tags"),
    [
        ("Epoch: 1 \tTraining Loss: 0.5 \tTraining Accuracy: 0.9 \tValidation Loss: 0.6 \tValidation  Accuracy: 0.8",
         ["Training Loss", "Training Accuracy", "Validation Loss", "Validation Accuracy"]),
        ("Epoch 1, Train, Loss: 0.5, Acc: 0.9, Validation, Loss: 0.6, Acc: 0.8",
         ["Train Loss", "Train Acc", "Validation Loss", "Validation Acc"]),
        ("epoch 1: Train  Loss: 0.5  Train  Acc: 0.9  Test  Loss: 0.6  Test  Acc: 0.8",
         ["Train Loss", "Train Acc", "Test Loss", "Test Acc"]),
        ("epoch 3 lr: 0.1 | Val: | loss: 0.5", ["lr", "Val loss"]),
    ],
)  # fmt: skip
def test_a_split_word_within_a_row_holds_for_what_follows(row, tags):
    """Values before it belong to the split named before them, or to none; names with a split of their own keep it."""
    record = mine(row)
    assert record is not None
    assert [value.tag for value in record.values] == tags
    assert record.split == ""


def test_a_sentence_of_scores_is_a_row(tmp_path: Path) -> None:
    """The number before the word is the epoch; the words around the scores make no prose of them."""
    path = tmp_path / "log.txt"
    rows = [
        f"{i}/40 in {e} epoch computed by 0:{e}:{i:02d} since start, Loss is {2 - i / 40 - e:.4f} Acc is 0.{i + 10}"
        for e in (0, 1)
        for i in range(40)
    ]
    path.write_text("\n".join(rows))
    reading = read_text(path)
    assert [s for s, _, _ in values_of(reading, "Loss")] == list(range(80))
    assert values_of(reading, "Acc")[-1][1] == 0.49


@pytest.mark.parametrize("kind", ["val_epoch", "eval_iter", "test"])
def test_a_type_tells_the_data_of_its_row(kind: str, tmp_path: Path) -> None:
    """``"_type": "val_epoch"``: the scores of the evaluation are no points of the training."""
    path = tmp_path / "stats.log"
    rows = []
    for e in range(1, 9):
        rows.append(f'stats: {{"_type": "train_epoch", "epoch": "{e}/8", "loss": {1 / e:.4f}, "top1_acc": {e}.5}}')
        rows.append(f'stats: {{"_type": "{kind}", "epoch": "{e}/8", "top1_acc": {e + 10}.25}}')
    path.write_text("\n".join(rows))
    reading = read_text(path)
    assert [v for _, v, _ in values_of(reading, "top1_acc")] == [e + 0.5 for e in range(1, 9)]
    assert [v for _, v, _ in values_of(reading, f"{kind.partition('_')[0]} top1_acc")] == [
        e + 10.25 for e in range(1, 9)
    ]


def test_a_short_name_of_the_epoch_at_the_head_of_a_row(tmp_path: Path) -> None:
    """``e: 3 … loss`` counts epochs; energies do not."""
    path = tmp_path / "log.txt"
    path.write_text("".join(f"e:\t{e}\ts:\t8909\tlr:\t0.001\ttrainLoss\t{2 / e:.4f}\n" for e in range(1, 9)))
    assert [s for s, _, _ in values_of(read_text(path), "trainLoss")] == list(range(1, 9))
    found = mine("e: 3 pressure: 2.5")
    assert found is None or found.epoch is None


def test_the_number_of_an_epoch_after_a_hash_is_a_position() -> None:
    """As of ``[best so far] Epoch #3: loss=1.2``; the number of an output is none."""
    for row in ("Epoch #12: train_loss=1.25, time=0.9s", "[best so far] Epoch #12: train_loss=1.25"):
        record = mine(row)
        assert record is not None
        assert (record.epoch, record.values[0][:2]) == (12.0, ("train_loss", 1.25))
    record = mine("output #12: accuracy = 0.9")
    assert record is not None
    assert record.step is None
    assert record.epoch is None


def test_where_the_best_value_was_is_not_where_the_training_is() -> None:
    for row in ("Best F1: 0.91 at epoch 7", "Best val loss: 0.12 (epoch 7)", "best acc 91.2% at step 7000"):
        record = mine(row)
        assert record is not None
        assert (record.epoch, record.step, len(record.values)) == (None, None, 1)
    for row in (
        "New best val loss: 0.12 at epoch 7",
        "epoch 7 | loss 0.5 | best acc 0.9 (epoch 3)",
        "epoch 7, best acc 0.9",
    ):
        record = mine(row)
        assert record is not None
        assert record.epoch == 7


def test_a_name_and_a_number_that_fill_a_cell() -> None:
    record = mine("step 40 | loss 3.2 | lr 1.0e-04 | grad 0.768 | 37.5k tok/s | mfu 37.67%")
    assert record is not None
    assert ("grad", 0.768) in [(v.tag, v.number) for v in record.values]


@pytest.mark.parametrize(
    "row",
    [
        "    CPU time :                                   18.84 sec.",
        "    Max Memory :                                 2802 MB",
        "    Turnaround time :                            49486 sec.",
        "MainThread:654 [wandb_setup.py:_flush():76] Current SDK version is 0.15.3",
        "MsgRouterThr:654 [router.py:message_loop():77] message_loop has been closed",
    ],
)
def test_the_summary_of_a_scheduler_and_the_log_of_a_logger_hold_no_metrics(row: str) -> None:
    assert mine(row) is None


@pytest.mark.parametrize(
    "row",
    [
        "engine/trainer: task=detect, mode=train, model=m.pt, epochs=100, patience=50, batch=16, iou=0.7, lr0=0.01",
        "semantic_segmentation INFO: Namespace(model='deeplab', workers=8, lr=0.02, local_rank=0, val_epoch=1)",
    ],
)
def test_settings_behind_the_name_of_a_logger_are_no_metrics(row: str) -> None:
    assert mine(row) is None


@pytest.mark.parametrize(
    ("cell", "rate"),
    [
        ("37.5k tok/s", ("k tok/s", 37.5)),
        ("173580 tok/s", ("tok/s", 173580.0)),
        ("1,250 imgs/sec", ("imgs/sec", 1250.0)),
        ("2.1 it/s", ("it/s", 2.1)),
        ("40k samples seen", None),
        ("12.5", None),
    ],
)
def test_a_rate_that_only_its_unit_names(cell: str, rate: tuple[str, float] | None) -> None:
    record = mine(f"step 40 | loss 3.2 | {cell} | grad 0.8")
    assert record is not None
    assert [(v.tag, v.number) for v in record.values if v.tag not in ("loss", "grad")] == ([rate] if rate else [])


def test_a_quotient_above_one_is_no_position() -> None:
    """``77/72`` of a printed calculation: no training is at step 77 of 72."""
    for row in ("* 77/72 is the sum", "77/72 loss 0.3"):
        record = mine(row)
        assert record is None or record.n is None
    record = mine("72/77 loss 0.3")
    assert record is not None
    assert (record.n, record.total) == (72, 77)


@pytest.mark.parametrize(
    ("row", "tag", "value"),
    [
        ("[step 550] avg loss over last 50 steps: 0.5123", "avg loss", 0.5123),
        ("step 550 mean loss of the last 100 updates: 1.25", "mean loss", 1.25),
        ("step 7 loss averaged over 20 iters = 0.75", "loss", 0.75),
        ("Episode 200 Average reward (last 100 episodes): -12.5", "Average reward", -12.5),
        ("Episode 100\tAverage Score over last 100 episodes: 3.25", "Average Score", 3.25),
        ("step 5 accuracy of last 100 batches 0.55", "accuracy", 0.55),
    ],
)
def test_the_steps_that_a_mean_is_of_are_no_value(row: str, tag: str, value: float) -> None:
    """The number of steps in the middle of a name is neither the value nor a position."""
    found = mine(row)
    assert found is not None
    assert [(v.tag, v.number) for v in found.values] == [(tag, value)]
    again = mine(row.replace(f"{value:g}" if f"{value:g}" in row else str(value), "nan"))
    assert again is not None
    assert [v.tag for v in again.values if v.number != v.number] == [tag]


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("[3/5][20/40] Loss_G: 0.69 D(G(z)): 0.52 / 0.48", {"Loss_G": 0.69, "D(G(z))": 0.52, "D(G(z)) (2)": 0.48}),
        ("step 3 acc: 0.5 / 0.7 / 0.9 lr: 0.1", {"acc": 0.5, "acc (2)": 0.7, "acc (3)": 0.9, "lr": 0.1}),
        ("step 3 loss: 0.5 / nan", {"loss": 0.5, "loss (2)": math.nan}),
        ("step 3 loss: 0.5 acc: 3 / 10.5", {"loss": 0.5, "acc": 3.0}),
    ],
)
def test_a_name_may_have_several_values(row: str, values: dict[str, float]) -> None:
    """Numbers with a fraction between slashes are values of one name; a share has a whole number first."""
    record = mine(row)
    assert record is not None
    found = {value.tag: value.number for value in record.values}
    assert found.keys() == values.keys()
    assert all(same(found[tag], value) for tag, value in values.items())
    assert all(number(row[value.start : value.end]) == value.number for value in record.values if value.number >= 0)
