"""Names that rows of the training share with rows of its evaluation, and other rows that look like counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postmortem.readers.text import read_text
from postmortem.readers.text.records.miner import mine

if TYPE_CHECKING:
    from pathlib import Path


def series(tmp_path: Path, text: str) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of each tag of a log with this text."""
    log = tmp_path / "train.log"
    log.write_text(text)
    points = read_text(log).points
    found: dict[str, list[tuple[int, float]]] = {}
    for code, step, value in zip(points.code, points.step, points.value, strict=True):
        found.setdefault(points.tags[code], []).append((int(step), float(value)))
    return found


def test_a_loss_beside_a_score_of_the_evaluation_is_of_it(tmp_path: Path) -> None:
    """Other rows print the loss beside a score of the training."""
    rows = []
    for e in range(1, 7):
        rows += [
            f"[Epoch: {e:02d}] Train acc: 0.{e}0 | loss: {3 - e / 4}",
            f"[Epoch: {e:02d}] Valid acc: 0.{e}5 | loss: {4 - e / 4}",
        ]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert found["loss"] == [(e, 3 - e / 4) for e in range(1, 7)]
    assert found["valid loss"] == [(e, 4 - e / 4) for e in range(1, 7)]


def test_two_names_beside_a_score_of_the_evaluation(tmp_path: Path) -> None:
    """Each of several names that both kinds of rows print gets a tag of its own."""
    rows = []
    for e in range(1, 7):
        rows += [
            f"[Epoch: {e:02d}] Train f1: 0.{e}0 | loss: {3 - e / 4} | acc: 0.{e}1",
            f"[Epoch: {e:02d}] Valid f1: 0.{e}5 | loss: {4 - e / 4} | acc: 0.{e}2",
        ]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert [len(found[tag]) for tag in ("loss", "valid loss", "acc", "valid acc")] == [6, 6, 6, 6]


def test_a_loss_beside_a_score_of_the_evaluation_only(tmp_path: Path) -> None:
    """Nothing tells whose loss it is: it keeps its name."""
    found = series(tmp_path, "".join(f"Epoch {e} | Test acc: 0.{e}5 | Loss: {4 - e / 4}\n" for e in range(1, 7)))
    assert len(found["Loss"]) == 6


def test_batches_of_another_pass_place_no_rows(tmp_path: Path) -> None:
    """``Valid | Epoch 1 | 2/3``: the epochs of the training count on."""
    rows = []
    for e in range(1, 6):
        rows += [f"- Train | Epoch {e} | {n}/90 | 1.5 it/sec | Loss {3 - e / 4 - n / 900:.4f}" for n in (30, 60, 89)]
        rows += [f"- Valid | Epoch {e} | {n}/3 | 0.3 it/sec | Loss {4 - e / 4:.4f}" for n in (1, 2)]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert [step for step, _ in found["Loss"]] == [90 * (e - 1) + n for e in range(1, 6) for n in (30, 60, 89)]
    assert {step for step, _ in found["Valid Loss"]} == {90 * e for e in range(1, 6)}


@pytest.mark.parametrize("counts", ["({}/2466)", ", ({}/2466)", " ({} / 2466)"])
def test_the_counts_behind_a_percentage_are_no_step(tmp_path: Path, counts: str) -> None:
    """They are the share's numerator and denominator."""
    rows = [
        f"epoch   {e}\nloss: {6 - e / 4:.3f}\ntest accuracy: {20 + (e * 7) % 5:.2f}%{counts.format(512 + (e * 7) % 5)}"
        for e in range(1, 9)
    ]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert [step for step, _ in found["loss"]] == list(range(1, 9))


def test_rows_of_a_matrix_are_no_epochs(tmp_path: Path) -> None:
    """``[ 1104, 151, 10140]], dtype=int32)`` is one, ``[3, 100] loss: 1.2`` is not."""
    rows = [
        f"[Epoch: {e:02d}] train acc: 0.{e}0 | loss: {3 - e / 4}\nmatrix=tensor([[  {500 + e},    54,   546],\n"
        f"        [   {23 - e},  1590,   251],\n        [ {1517 - 9 * e},   624, 10015]], dtype=torch.int32)"
        for e in range(1, 9)
    ]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert [step for step, _ in found["loss"]] == list(range(1, 9))
    found = series(tmp_path, "".join(f"[{e}, {n:5d}] loss: {3 - e / 4}\n" for e in (1, 2) for n in (100, 200)))
    assert len(found["loss"]) == 4


def test_a_header_between_tabs_without_a_step(tmp_path: Path) -> None:
    """Rows of numbers below names between tabs, one of which is known."""
    rows = [f"{14 - i / 2:.4f}\t{27 - i}.5\t{21 - i / 3:.4f}" for i in range(20)]
    found = series(tmp_path, "\n".join(["train_loss\ttrain_EPE\tEPE", *rows]) + "\n")
    assert [value for _, value in found["train_loss"]] == [14 - i / 2 for i in range(20)]
    assert len(found["EPE"]) == 20


@pytest.mark.parametrize("sign", [" ", ", ", "\t", ",", "; "])
def test_several_numbers_without_names(tmp_path: Path, sign: str) -> None:
    """The first counts the rows, the others are numbered."""
    rows = [sign.join([str(i), f"{2 - i / 50:.4f}", f"0.{50 + i}"]) for i in range(40)]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert found["unnamed number 1"] == [(i, pytest.approx(2 - i / 50)) for i in range(40)]
    assert len(found["unnamed number 2"]) == 40


def test_a_number_joined_to_the_word_for_the_epoch(tmp_path: Path) -> None:
    """``Epoch.3``; and what stands behind a loss of held-out data without a word of its own is of that data."""
    rows = []
    for e in range(12):
        rows += [
            f"2026-01-02 10:00:{e:02d},101 - trainer - INFO - ---Epoch.{e} Train Negative Log-Loss: {4 - e / 8}. ",
            f"2026-01-02 10:00:{e:02d},102 - trainer - INFO - ---Epoch.{e} Val Negative Log-Loss: {5 - e / 8}; "
            f"Cross-Entropy: {1.4 - e / 100:.2f}; MAPE: 6.1",
        ]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert found["Train Negative Log-Loss"] == [(e, 4 - e / 8) for e in range(12)]
    assert found["Val Negative Log-Loss"] == [(e, 5 - e / 8) for e in range(12)]
    assert [step for step, _ in found["Val Cross-Entropy"]] == list(range(12))
    assert "Cross-Entropy" not in found


@pytest.mark.parametrize(
    "header",
    [
        "End of epoch {} / 12 \t Time Taken: 12.5 sec",
        "Epoch no. {}",
        "Epoch number {}",
        "Epoch{}:",
        "epoch_{}",
        "epoch: {}th",
        "current step: {}th step",
        "step {}th",
        "Outer Step: {}",
    ],
)
def test_words_around_the_counter_of_a_header(tmp_path: Path, header: str) -> None:
    """A counter that is an ordinal, joined to its number, or named as the end of an epoch places the rows below it."""
    rows = [f"{header.format(e)}\nTrain loss: {2 - e / 20:.2f}" for e in range(1, 13)]
    assert series(tmp_path, "\n".join(rows) + "\n")["Train loss"] == [(e, 2 - e / 20) for e in range(1, 13)]


def test_a_phase_counted_in_steps_before_one_counted_in_epochs(tmp_path: Path) -> None:
    """Two counters are two axes: the rows of the first phase keep the steps that they print."""
    outer = [f"    Outer Step:  {i:4d}   LossA: {2 - i / 50:.3f}    Crit: {1 - i / 90:.3f}" for i in range(40)]
    inner = [f"    Epoch:  {i:4d}   LossB: {1 - i / 200:.4f}" for i in range(120)]
    found = series(tmp_path, "\n".join([*outer, *inner]) + "\n")
    assert [step for step, _ in found["LossA"]] == list(range(40))
    assert [step for step, _ in found["LossB"]] == list(range(120))


def test_a_name_and_its_number_printed_with_a_comma(tmp_path: Path) -> None:
    """``lr, 0.00097``, as print writes two strings joined by a comma."""
    rows = [f"lr, {1e-3 / e:.6f}\nepoch={e}/12,total_loss={2 - e / 20:.2f}" for e in range(1, 13)]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert [value for _, value in found["lr"]] == [round(1e-3 / e, 6) for e in range(1, 13)]
    assert not mine("workers, 12")


@pytest.mark.parametrize("text", ["saved to runs/epoch5/model", "use the 4th worker, no. 3", "epoch5_best.pt at 7"])
def test_numbers_in_names_are_no_counters(text: str) -> None:
    """A folder, a file name or an ordinal of something else."""
    record = mine(text)
    assert record is None or (record.epoch, record.step) == (None, None)


def test_frames_of_reinforcement_learning(tmp_path: Path) -> None:
    """``T = 25000 / 1000000``, as Rainbow prints it, beside words that name the environment."""
    rows = [
        f"[2026-06-14T23:{i:02d}:37] T = {25000 * i} / 1000000 | env: size5_full_information_and_obstacles | "
        f"Avg. reward: {i - 9}.5 | Avg. Q: -2.{i}"
        for i in range(1, 20)
    ]
    found = series(tmp_path, "\n".join(rows) + "\n")
    [reward] = [tag for tag in found if "reward" in tag]
    assert found[reward] == [(25000 * i, i - 9 + (0.5 if i >= 9 else -0.5)) for i in range(1, 20)]


def test_numbers_of_a_configuration_are_no_steps(tmp_path: Path) -> None:
    """Entries of a dict, and the number of epochs in a listing: the settings near them are no points."""
    rows = ["palette = dict({", *(f"    {i}: {40 - i}," for i in range(9)), "    9: 40", "})", "lr = 0.01"]
    rows += ["settings", " * epoch: 15", " * lr: 0.001", " * decay: 0.1"]
    rows += [f"Epoch [1][{n}/2901]  lr: 4.0e-04  loss: {9 - n / 100}" for n in (50, 100, 150, 200)]
    found = series(tmp_path, "\n".join(rows) + "\n")
    assert [step for step, _ in found["lr"]] == [50, 100, 150, 200]


def test_a_bar_that_runs_beyond_its_total(tmp_path: Path) -> None:
    """It shows no total then, and the epoch is as long as it ran."""
    rows = []
    for e in range(1, 6):
        states = [
            f"Epoch {e}:  10%|█  | {n}/14 [00:{n:02d}<01:00,  1.2s/it, loss={9 - e / 4 - n / 100:.2f}]"
            for n in range(15)
        ]
        states += [f"Epoch {e}: {n}it [00:{n:02d},  1.2s/it, loss={9 - e / 4 - n / 100:.2f}]" for n in range(15, 20)]
        rows.append("\r".join(states))
    found = series(tmp_path, "\n".join(rows) + "\n")
    steps = [step for step, _ in found["loss"]]
    assert steps == sorted(set(steps))
    assert len(steps) >= 5 * 19
