"""Steps that go back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import postmortem
from postmortem.detectors.step_reset import StepReset
from tests.detectors.cases import N, fires, quiet

EVERY = np.r_[0:200, 150:400]


@fires(StepReset, step=150)
def a_resume_fifty_steps_back(base):
    return {"train/loss": (EVERY, np.exp(-EVERY / 100) + 1)}


@quiet(StepReset)
def one_row_out_of_order(base):
    """A row that was written late does not start the run again."""
    steps = np.arange(N)
    steps[[200, 201]] = steps[[201, 200]]
    return {"train/loss": (steps, np.exp(-steps / 100) + 1)}


def _restarts(tmp_path, *lines):
    (tmp_path / "train.log").write_text("".join(lines))
    (report,) = postmortem.scan(tmp_path / "train.log").runs
    return report, [(f.severity, f.step, f.message) for f in report.findings if f.name == "step-reset"]


def test_an_evaluation_of_saved_checkpoints_is_no_restart_of_the_training(tmp_path):
    """Nothing of a training is logged after it; if a loss comes, it is one."""
    training = [f"step {i}, AUC: {0.9 - 1 / i}, loss: {2 - i / 500}\n" for i in range(10, 510, 10)]
    evaluation = [f"load model of step {i}\nstep {i}, AUC: {0.9 - 2 / i}\n" for i in range(300, 510, 50)]
    report, found = _restarts(tmp_path, *training, *evaluation)
    assert [(severity, step) for severity, step, _ in found] == [("info", 300)]
    assert "no loss is logged from there on" in found[0][2]
    assert report.verdict == "healthy"
    _, found = _restarts(tmp_path, *training, *evaluation, *training[30:])
    assert found[0][:2] == ("warning", 300)


def test_attempts_that_failed_before_one_that_completed(tmp_path):
    """Their starts are recognised by the settings that each prints, though these differ."""
    error = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nFileNotFoundError: no file 11.xml\n'
    steps = [f"iter {i} total_loss: {2 - i / 500:.3f}\n" for i in range(10, 510, 10)]
    start = (
        "2021-09-03 19:0{n}:28.330 | INFO     | trainer:before_train:126 - args: Namespace(batch_size={n}, lr=0.1)\n"
    )
    done = "2021-09-03 20:47:31.106 | INFO     | trainer:after:184 - Training of experiment is done, best AP 90.0\n"
    attempts = [start.format(n=4), error, start.format(n=2), *steps[:20], error, start.format(n=1), *steps, done]
    report, found = _restarts(tmp_path, *attempts)
    assert (report.ended, report.verdict) == ("completed", "healthy")
    assert [(severity, step) for severity, step, _ in found] == [("info", 10)]
    assert "FileNotFoundError" in found[0][2]
    report, found = _restarts(tmp_path, *attempts[:-1], error)
    assert report.verdict == "failed"


def log(folder, parts, between=""):
    """The findings of a text log whose epochs begin again in each part."""
    lines = [f"epoch {e} train_loss {2 / e + 0.1 * k:.4f}\n" for k, n in enumerate(parts) for e in range(1, n + 1)]
    starts = [0, *np.cumsum(parts)[:-1].tolist()]
    text = "".join((between if i in starts[1:] else "") + line for i, line in enumerate(lines))
    (folder / "train.log").write_text(text)
    [run] = postmortem.scan(folder).runs
    return [(f.severity, f.step) for f in run.findings if f.name == "step-reset"], run


def test_a_part_that_logs_more_rarely_begins_later(tmp_path):
    """One of twelve parts logs every second step, and so begins at the second: all are parts of one training."""
    parts = [range(5, 60 + 15 * (k % 4), 5) for k in range(12)]
    parts[8] = range(10, 60, 10)
    rows = "".join(f"step {i} loss {2 - i / 90 + k / 50:.4f}\n" for k, part in enumerate(parts) for i in part)
    (tmp_path / "train.log").write_text(rows)
    [run] = postmortem.scan(tmp_path).runs
    assert {f.severity for f in run.findings if f.name == "step-reset"} == {"info"}


@pytest.mark.parametrize("parts", [(12, 12, 12, 12, 12), (3, 3, 6), (9, 4, 9, 9, 6)])
def test_parts_that_begin_again_are_info(tmp_path, parts):
    """Folds, phases or trials of one log count from the beginning each: nobody has to look."""
    found, run = log(tmp_path, parts)
    assert {severity for severity, _ in found} == {"info"}
    assert run.verdict == "healthy"
    assert run.diagnosis is None


def test_a_single_start_from_the_beginning_is_another_training(tmp_path):
    """Its output was appended to the same log. With a loss that goes on, it is a resume that lost its counter."""
    found, run = log(tmp_path, (12, 7))
    assert found == [("info", 1)]
    assert run.verdict == "healthy"
    rows = [f"Epoch {e} loss {v:.3f}\n" for e, v in enumerate(curve(12, 1.6, 23), 1)]
    rows += [f"Epoch {e} loss {v:.3f}\n" for e, v in enumerate(curve(1.6, 1.2, 20), 1)]
    _, found = _restarts(tmp_path, *rows)
    assert [how for how, _, _ in found] == ["warning"]


def test_a_start_with_a_far_smaller_loss_is_another_training(tmp_path):
    """A classifier after a regression in one console: its loss is lower, but goes on from nothing."""
    rows = [f"Epoch {e} loss {v:.3f}\n" for e, v in enumerate(curve(6165, 420, 27), 1)]
    rows += [f"Epoch {e} loss {v:.3f}\n" for e, v in enumerate(curve(44, 1, 50), 1)]
    _, found = _restarts(tmp_path, *rows)
    assert [how for how, _, _ in found] == ["info"]


@pytest.mark.parametrize(
    ("between", "announced"),
    [("=== Phase 2: fine-tuning ===\n", True), ("Unfreezing backbone\n", True), ("Phase 1\n", False)],
)
def test_an_announced_phase_explains_its_own_counter(tmp_path, between, announced):
    """A phase that is announced where the counter starts over is planned; the same one again is another start."""
    log(tmp_path, (12, 7), between)
    (tmp_path / "train.log").write_text("Phase 1\n" + (tmp_path / "train.log").read_text())
    (found,) = (f for f in postmortem.scan(tmp_path).runs[0].findings if f.name == "step-reset")
    assert found.severity == "info"
    assert ("as the log announces" in found.message) == announced


def test_starts_after_failures_are_warnings(tmp_path):
    """Attempts that failed and began again are no parts of a plan."""
    error = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\nValueError: bad row\n'
    found, _ = log(tmp_path, (12, 12, 12), error)
    assert {severity for severity, _ in found} == {"warning"}


def curve(start: float, end: float, n: int) -> np.ndarray:
    """A loss that falls from one value to the other."""
    return end + (start - end) * np.exp(-np.arange(n) / (n / 5))


@pytest.mark.parametrize(
    ("attempts", "severity"),
    [
        ([curve(12, 1.6, 100), curve(11.6, 1.8, 200)], "info"),  # a second training, appended
        ([curve(0.2, 0.18, 100), curve(0.005, 0.003, 100), curve(0.28, 0.18, 100)], "info"),  # layer by layer
        ([curve(12, 1.6, 37), curve(11.6, 1.8, 200)], "info"),  # stopped somewhere and begun again
        ([curve(12, 1.6, 100), curve(1.6, 1.2, 100)], "warning"),  # resumed, but the counter was not
    ],
)
def test_a_complete_training_followed_by_a_new_one(tmp_path: Path, attempts: list[np.ndarray], severity: str) -> None:
    """It is no accident if the one before was complete and the loss begins anew."""
    rows = "".join(f"epoch {i} loss {loss:.6f}\n" for losses in attempts for i, loss in enumerate(losses))
    (tmp_path / "train.log").write_text(rows)
    [run] = postmortem.scan(tmp_path).runs
    assert {f.severity for f in run.findings if f.name == "step-reset"} == {severity}
    assert run.verdict == ("healthy" if severity == "info" else "suspect")


@pytest.mark.parametrize(
    "line",
    ["================ Training Loss (Wed Aug 23 13:{n}:28 2023) ================", "Wed Aug 23 13:{n}:28 UTC 2023"],
)
def test_an_attempt_that_begins_with_a_date_is_no_accident(tmp_path, line):
    """One that goes on in the middle is told as before; a date that is printed with every step is no start."""
    steps = [f"iter {i}, loss: {2 - i / 500:.3f}\n" for i in range(10, 510, 10)]
    first, second = (line.format(n=n) + "\n" for n in (29, 33))
    report, found = _restarts(tmp_path, first, *steps[:23], second, *steps)
    assert [(severity, step) for severity, step, _ in found] == [("info", 10)]
    assert "13:33:28" in found[0][2]
    assert report.verdict == "healthy"
    others = [f"iter {i}, loss: {2.1 - i / 400:.3f}\n" for i in range(110, 510, 10)]
    _, found = _restarts(tmp_path, first, *steps[:23], second, *others)
    assert found[0][:2] == ("warning", 110)
    dated = [f"{line.format(n=10 + n)}\n{step}" for n, step in enumerate([*steps[:23], *steps[:20]])]
    _, found = _restarts(tmp_path, *dated)
    assert found[0][1] == 10
    assert "begins after the line" not in found[0][2]


@pytest.mark.parametrize(("noise", "severity"), [(0.0, "info"), (1e-5, "info"), (0.05, "warning")])
def test_steps_that_come_again_with_the_same_values_are_a_clean_resume(tmp_path, noise, severity):
    """Equal losses show that weights, optimizer, data order and random numbers were restored."""
    rng = np.random.default_rng(0)
    loss = 2.5 * np.exp(-np.arange(600) / 200) + 0.4 + rng.normal(0, 0.03, 600)
    rows = [f"step {i} loss {loss[i]:.6f}\n" for i in range(0, 305, 5)]
    again = [f"step {i} loss {loss[i] + rng.normal(0, noise):.6f}\n" for i in range(250, 600, 5)]
    report, found = _restarts(tmp_path, *rows, "Loaded checkpoint step_250.pt\n", *again)
    assert [(how, step) for how, step, _ in found] == [(severity, 250)]
    assert ("with the same values" in found[0][2]) == (severity == "info")
    assert report.verdict == ("healthy" if severity == "info" else "suspect")


def test_a_run_that_starts_again_from_its_first_step_is_no_resume(tmp_path):
    """The same seed gives the same values; the steps before were not used all the same."""
    rows = [f"step {i} loss {2 / (i + 1) + 0.1 * (i % 3):.6f}\n" for i in range(0, 300, 5)]
    _, found = _restarts(tmp_path, *rows[:27], *rows)
    assert [(how, step) for how, step, _ in found] == [("info", 0)]
    assert "resumed" not in found[0][2]


def test_programs_that_were_started_at_a_shell_prompt_are_no_accident(tmp_path):
    """Where each restart is a command that was typed, it is told with it; a counter that falls more often is not."""
    rows = [f"step {i} loss {2 / (i + 1) + 0.1 * (i % 3):.6f}\n" for i in range(0, 300, 5)]
    first, second = (f"(env) anna@node7:~/nmt$ python train.py --layers {n}\n" for n in (2, 4))
    others = [row.replace("loss 0", "loss 1") for row in rows]
    _, found = _restarts(tmp_path, first, *rows[20:], second, *others[21:])
    assert [how for how, _, _ in found] == ["info"]
    assert "train.py --layers 4" in found[0][2]
    _, found = _restarts(tmp_path, first, *rows[20:], *others[42:], second, *rows[35:])
    assert "warning" in {how for how, _, _ in found}


def test_counters_of_a_program_that_trains_nothing_are_information(tmp_path):
    """Documents of a search, numbered for each query; with a loss beside them it is a training."""
    steps = (*range(0, 50, 2), *range(10, 30, 2))
    rows = [f"step {i} documents {1000 + i} kept {90 - n}\n" for n, i in enumerate(steps)]
    _, found = _restarts(tmp_path, *rows)
    assert [how for how, _, _ in found] == ["info"]
    _, found = _restarts(tmp_path, *(row.replace("kept", "loss") for row in rows))
    assert [how for how, _, _ in found] == ["warning"]


def _epochs(first, last, offset=0.0):
    return [f"Epoch {i} loss {2 / (i + 1) + offset:.4f} lr 0.001\n" for i in range(first, last)]


@pytest.mark.parametrize(
    ("line", "announced"),
    [
        ("Start training with 2 GPUs from the pretrained model resnet.pth", True),
        ("2026-02-12 00:29:58,966:INFO: Starting training for 12 epoch(s)", True),
        ("Training starting on: 08/02/2026, 03:02:13", True),
        ("Start training epoch 0", False),
        ("the loader was rebuilt", False),
    ],
)
def test_an_attempt_that_announces_itself_is_no_accident(tmp_path, line, announced):
    """Starts that logged nothing print the line as well."""
    attempts = [f"{line}\n"] * 8 + _epochs(0, 7) + [f"{line}\n"] + _epochs(0, 12, 0.1)
    _, found = _restarts(tmp_path, *attempts)
    assert [f[0] for f in found] == ["info"]
    assert ("begins after the line" in found[0][2]) == announced


@pytest.mark.parametrize("interval", [20, 50])
def test_an_attempt_that_counts_from_zero_begins_before_its_first_row(tmp_path, interval):
    """Rows at 19, 39, 59 are every twentieth of steps that are counted from 0; the last row may lie anywhere."""
    first = [f"iter: {i}  total_loss: {3 - i / 400:.3f}  lr: 0.001\n" for i in range(0, 193, 4)]
    steps = [*range(interval - 1, 500, interval), 507]
    second = [f"iter: {i}  total_loss: {3.1 - i / 400:.3f}  lr: 0.001\n" for i in steps]
    _, found = _restarts(tmp_path, *first, *second)
    assert [(how, step) for how, step, _ in found] == [("info", interval - 1)]


@fires(StepReset, step=0)
def a_start_from_the_beginning_in_an_event_file(base):
    """Unlike a log in text, it is not appended to by habit: the run that was there is lost from view."""
    steps = np.r_[0:320, 0:400]
    return {"train/loss": (steps, np.exp(-steps / 60) + 1 + 0.01 * np.sin(np.arange(720)))}


def test_many_restarts_are_one_finding(tmp_path):
    """With the first of them, and how many there are."""
    rows = [
        f"step {i} loss {2 / (i + 1) + 0.5 + k / 50 + 0.01 * (i % 3):.4f} lr 0.01\n"
        for k in range(6)
        for i in range(100 * k, 100 * k + 130)
    ]
    _, found = _restarts(tmp_path, *rows)
    assert [(how, step) for how, step, _ in found] == [("warning", 100)]
    assert "4 more times, from 229 to 200, from 329 to 300 and so on" in found[0][2]


def test_an_announced_attempt_after_one_that_became_nan_is_a_warning(tmp_path):
    lines = ["Start training!\n", *_epochs(0, 5), "Epoch 5 loss nan lr 0.001\n", "Epoch 6 loss nan lr 0.001\n"]
    _, found = _restarts(tmp_path, *lines, "Start training!\n", *_epochs(0, 12))
    assert [f[0] for f in found] == ["warning"]


def test_a_second_phase_that_logs_every_tenth_epoch(tmp_path):
    """It begins at its own first row, epoch 10, with a loss of another size, after a complete first phase."""
    first = [f"Epoch #{i}: train_loss={5 * 0.98**i + 1.7:.5f}, val_loss={5 * 0.98**i + 1.8:.5f}\n" for i in range(200)]
    second = [
        f"Epoch {i}/100: train_loss={0.8 / i + 0.03:.5f}, val_loss={0.9 / i + 0.3:.5f}\n" for i in range(10, 101, 10)
    ]
    report, found = _restarts(tmp_path, *first, *second)
    assert report.verdict == "healthy"
    assert [f[0] for f in found] == ["info"]


def test_passes_of_an_evaluation_are_no_restarts(tmp_path):
    """Only scores are logged: the second pass over the saved epochs is no training that starts over."""
    one = [
        f"Epoch: {e} evaluation finished, pixAcc: {90 + e / 50:.2f}, mIoU: {50 + e / 20:.2f}\n"
        for e in range(0, 200, 5)
    ]
    _, found = _restarts(tmp_path, *one, *one)
    assert {f[0] for f in found} <= {"info"}


@pytest.mark.parametrize(("second", "severity"), [(0.0, "info"), (0.4, "warning")])
def test_rows_that_two_processes_write(tmp_path, second, severity):
    """One writes each row some time after the other; with other losses they are two trainings."""
    rows = [
        [f'{{"current_steps": {i}, "loss": {2 - i / 900 + o:.4f}}}\n' for i in range(10, 901, 10)] for o in (0, second)
    ]
    lines = [rows[0][0], rows[1][0]]
    for i in range(1, 90):
        lines += [rows[0][i], rows[1][i]]
    for i in (20, 40, 60):  # the second process falls three rows behind, and writes them at once
        at = lines.index(rows[1][i])
        late = [rows[1][i], rows[1][i + 1]]
        lines = [line for line in lines if line not in late]
        lines[at + 2 : at + 2] = late
    (tmp_path / "trainer_log.jsonl").write_text("".join(lines))
    (report,) = postmortem.scan(tmp_path / "trainer_log.jsonl").runs
    assert {f.severity for f in report.findings if f.name == "step-reset"} == {severity}


def test_a_training_that_begins_after_the_summary_of_another(tmp_path):
    """transformers' Trainer prints it at the end: whatever step is next, nothing went back."""
    rows = [f"step {i} loss {2 / i + 0.3:.4f} lr 0.01\n" for i in range(20, 420, 20)]
    summary = "step 400 train_runtime 2331.97 train_steps_per_second 2.983 train_loss 0.1268\n"
    others = [f"step {i} loss {2 / i + 0.2:.4f} lr 0.01\n" for i in range(130, 420, 10)]
    _, found = _restarts(tmp_path, *rows, summary, *others)
    assert [how for how, _, _ in found] == ["info"]
    _, found = _restarts(tmp_path, *rows, *others)
    assert [how for how, _, _ in found] == ["warning"]


def test_a_new_training_that_logs_its_first_steps_late(tmp_path):
    """Nobody resumes thousands of steps back: a counter that starts again within the first hundredth starts over."""
    first = [f"iter {i}: loss {3 * np.exp(-i / 300) + 1 + i % 7 / 100:.4f}\n" for i in range(1, 4000)]
    second = [f"iter {i}: loss {3 * np.exp(-i / 300) + 1 + i % 5 / 100:.4f}\n" for i in range(30, 900)]
    _, [found] = _restarts(tmp_path, *first, *second)
    assert found[:2] == ("info", 30)


def _two_counts(tmp_path, resumes):
    rows = []
    for k in range(8):
        low = range(1000 * k, 1000 * k + 40) if resumes else range(5 * k, 5 * k + 5)
        high = range(0) if resumes else range(900 + 5 * k, 905 + 5 * k)
        rows += [f"step {i} loss: {3 / (1 + i / 50) + 0.01 * (i % 3)}\n" for i in (*low, *high)]
        rows += [
            f"step {i} loss: {3 / (1 + i / 50)}\n" for i in (range(1000 * k + 20, 1000 * k + 40) if resumes else ())
        ]
    return _restarts(tmp_path, *rows)[1]


def test_two_processes_that_write_one_log_are_told(tmp_path):
    """Their counts go on alternately; a job that is resumed again and again has one count."""
    for resumes in (False, True):
        found = [message for severity, _, message in _two_counts(tmp_path, resumes) if severity == "warning"]
        assert len(found) == 1
        assert ("as if two processes write to one log" in found[0]) == (not resumes)
