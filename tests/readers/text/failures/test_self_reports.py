"""What a training reports about itself in words: events with fields, findings where the numbers do not show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import postmortem
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.report import RunReport


def _steps(first: int, last: int) -> list[str]:
    return [f"step {i}: loss {2.5 - 0.01 * i:.4f}" for i in range(first, last + 1)]


def _report(tmp_path: Path, lines: list[str], name: str = "train.out") -> RunReport:
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    (report,) = postmortem.scan(tmp_path).runs
    return report


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nan-report", "NaN/Inf detected in loss!"),
        ("nan-report", "Warning: NaN or Inf in loss!"),
        ("nan-report", "Gradient of encoder.fc1.weight contains NaN"),
        ("nan-report", "fc1.weight.grad contains nan"),
        ("nan-report", "loss became NaN at iter 1200"),
        ("nan-report", "grad norm is not finite"),
        ("nan-report", "the loss is now NaN, restarting from the last checkpoint"),
        ("nan-report", "The objective was not a number in 6 of 30 minibatches"),
        ("nan-report", "30 of 30 minibatches were nan"),
        ("nan-report", "12 out of 100 steps gave NaN"),
        ("nan-report", "cost is not finite"),
        ("update-skipped", "Skipping batch 12 due to NaN loss"),
        ("update-skipped", "[WARNING] inf/nan in gradients; optimizer step skipped"),
        ("update-skipped", "Non-finite gradient at iteration 14, skipping optimizer step"),
        ("no-gradient", "WARNING: encoder.fc.weight.grad is None"),
        ("no-gradient", "Parameter decoder.embed did not receive a gradient"),
        ("large-gradient", "Exploding gradient detected in layer fc1.weight"),
        ("tv-loss-nan", "Loss is NaN, stopping training"),
        ("empty-cache", "***** Num examples = 0"),
    ],
)
def test_a_report_is_an_event(kind: str, text: str) -> None:
    """Each wording has its signature."""
    found = CATALOGUE.match(text)
    assert found is not None
    assert found[0].id == kind


@pytest.mark.parametrize(
    "text",
    [
        "number of skipped iterations:   3 | number of nan iterations:   0 |",
        "No NaN/Inf detected in loss",
        "0 NaN gradients found",
        "Has NaN: False",
        "0 of 30 minibatches were nan",
        "Stop if loss is NaN",
        "Any NaN in loss? False",
        "val_loss improved from inf to 0.5",
        "best loss is inf",
        "will skip batches with NaN loss",
        "Skipped 12 rows with NaN",
        "skip_nan: True",
        "iter 320: loss=0.4439, grad_norm=inf, loss_scale=65536.0, skipped=1.0000",
        "skipped: 0 loss: nan",
        "gradient clipping to avoid exploding gradients",
        "large gradient accumulation of 64",
        "no gradient checkpointing",
        "torch.autograd.set_detect_anomaly(True) to find NaN in gradients",
    ],
)
def test_a_setting_or_a_passed_check_is_none(text: str) -> None:
    """Words about NaN that report none are no events."""
    assert CATALOGUE.match(text) is None


def test_a_loss_that_is_nan_in_words_only_fails_the_run(tmp_path: Path) -> None:
    """The program stops at its own check and never prints the NaN: the step and the parameter come from its words."""
    lines = [*_steps(0, 30), "[Step 31] NaN/Inf detected in loss!", " -> NaN/Inf in parameter: module.conv1.weight"]
    report = _report(tmp_path, lines)
    assert report.verdict == "failed"
    root = report.findings[0]
    assert (root.name, root.step, root.evidence["parameters"]) == ("nan-onset", 31, ["module.conv1.weight"])


def test_a_loss_that_is_no_number_to_the_regular_end_fails_the_run(tmp_path: Path) -> None:
    """No value follows the report, only the same words for each sweep, and the program ends as if all were well."""
    sweeps = [f"sweep {i}: average objective {0.08 / (1 + 0.1 * i):.5f}" for i in range(1, 23)]
    words = [f"sweep {i}: the objective was not a number in 30 of 30 minibatches." for i in range(23, 41)]
    report = _report(tmp_path, [*sweeps, *words, "Training finished."])
    assert report.verdict == "failed"
    assert (report.findings[0].name, report.findings[0].step) == ("nan-onset", 23)
    assert report.run.roles == {"average objective": "loss"}


def test_a_gradient_that_is_nan_in_words_makes_a_run_suspect(tmp_path: Path) -> None:
    """The training goes on with a finite loss: that is no proof of a failure, and no healthy run."""
    report = _report(
        tmp_path, [*_steps(0, 30), "NaN gradient in encoder.weight", *_steps(31, 60), "Training finished."]
    )
    assert report.verdict == "suspect"
    assert [(f.name, f.step) for f in report.findings] == [("nonfinite-gradient", 30)]


def test_a_skipped_batch_is_told_and_no_fault(tmp_path: Path) -> None:
    """The program handled it; its sentence is no metric."""
    words = ["WARNING: non-finite loss nan, skipping batch 31"]
    report = _report(tmp_path, [*_steps(0, 30), *words, *_steps(32, 60), "Training complete"])
    assert report.verdict == "healthy"
    assert [(f.severity, f.step) for f in report.findings] == [("info", 31)]
    assert list(report.run.roles) == ["loss"]


def test_batches_skipped_again_and_again_make_a_run_suspect(tmp_path: Path) -> None:
    """If every third batch is skipped, the model hardly learns."""
    lines = [
        f"loss is nan, skipping batch {i}" if i > 20 and i % 3 == 0 else f"step {i}: loss {2 - 0.01 * i:.4f}"
        for i in range(60)
    ]
    assert _report(tmp_path, lines).verdict == "suspect"


def test_the_parameters_of_a_report_are_evidence(tmp_path: Path) -> None:
    """Where the loss itself turns NaN, the names that the program prints belong to the diagnosis."""
    nan = [f"step {i}: loss nan" for i in range(31, 50)]
    report = _report(tmp_path, [*_steps(0, 30), "NaN gradient in encoder.weight", "NaN gradient in encoder.bias", *nan])
    assert [f.name for f in report.findings] == ["nan-onset"]
    assert report.diagnosis is not None
    assert any("encoder.weight, encoder.bias" in text for text in report.diagnosis.evidence_for)


def test_a_cache_of_0_items_makes_a_run_suspect(tmp_path: Path) -> None:
    """The loss falls, but over which data?"""
    report = _report(
        tmp_path, ["[Data] Cache preloaded: 0 items, 0.0GB / 30.0GB", *_steps(0, 40), "Training finished."]
    )
    assert (report.verdict, report.findings[0].name) == ("suspect", "empty-dataset")


_STRIDES = "Warning: Grad strides do not match bucket view strides. This may indicate grad was not created."
_GRAD = "grad.sizes() = [64, 1, 3, 3], strides() = [9, 1, 3, 1]"
_BUCKET = "bucket_view.sizes() = [64, 1, 3, 3], strides() = [9, 9, 3, 1] (function operator())"


@pytest.mark.parametrize(
    ("first", "below", "others"),
    [
        ("[rank{}]:[W1017 12:09:57.2 reducer.cpp:327] ", "", ""),
        ("[rank{}]: ", "[rank{}]: ", ""),
        ("{}: ", "{}: ", "0: "),
    ],
)
def test_the_strides_of_ddp_are_read_in_every_form(tmp_path: Path, first: str, below: str, others: str) -> None:
    """Only the first line of the message may bear the rank; the lines of two ranks follow one another."""
    lines = []
    for rank in (0, 1):
        lines += [first.format(rank) + _STRIDES, below.format(rank) + _GRAD, below.format(rank) + _BUCKET]
    lines += [others + line for line in _steps(0, 9)]
    report = _report(tmp_path, lines)
    (event,) = [e for e in report.events if e.kind == "ddp-stride"]
    assert event.fields["ranks"] == [0, 1]
    assert event.fields["grad_strides"] == [9, 1, 3, 1]
    assert event.fields["bucket_strides"] == [9, 9, 3, 1]
    assert event.fields["grad_sizes"] == [64, 1, 3, 3]


def test_each_block_of_a_layout_diagnosis_has_its_own_parameter(tmp_path: Path) -> None:
    """At the start the parameter stands in a line of its own; a block about inputs has none."""
    lines = [
        "[STRIDE-DIAG] Checking initial parameter memory layout:",
        "  [WARNING] second.conv.weight is NON-CONTIGUOUS at init:",
        "    shape=(64, 1, 3, 3), stride=(9, 1, 3, 1)",
        "[STRIDE-DIAG][iter 0] Input tensor memory format (D step):",
        "  real_data: is_channels_last=True",
        "[STRIDE-DIAG][rank 1] NON-CONTIGUOUS gradient in first.conv.weight:",
        "  shape=(64, 1, 3, 3), stride=(9, 1, 3, 1)",
        "  expected_stride=(9, 9, 3, 1)",
        *_steps(0, 9),
    ]
    events = [e for e in _report(tmp_path, lines).events if e.kind == "stride-diag"]
    named = {e.fields["parameter"]: e.fields for e in events if "parameter" in e.fields}
    assert list(named) == ["second.conv.weight", "first.conv.weight"]
    assert named["second.conv.weight"]["stride"] == [9, 1, 3, 1]
    assert named["first.conv.weight"]["expected_stride"] == [9, 9, 3, 1]


def test_an_estimate_of_memory_has_both_numbers(tmp_path: Path) -> None:
    """What it needs, and what there is."""
    lines = [
        "[WARNING] Estimated GPU memory 10.0GB (model 0.02GB) may exceed available GPU memory 8.0GB",
        *_steps(0, 9),
    ]
    (event,) = _report(tmp_path, lines).events
    assert (event.fields["estimate_gb"], event.fields["available_gb"]) == (10.0, 8.0)


def test_a_skipped_batch_between_two_steps_is_the_step(tmp_path: Path) -> None:
    """A message that says "batch 22" between the rows of steps 21 and 23 names its step; "batch 3" does not."""
    rows = [f"step {i} loss {2 - 0.01 * i:.4f}" for i in range(40) if i != 22]
    for batch, step in ((22, 22), (3, 21)):
        rows_now = [*rows[:22], f"non-finite loss nan, skipping batch {batch}", *rows[22:]]
        (tmp_path / "train.log").write_text("\n".join(rows_now) + "\n")
        [event] = postmortem.load(tmp_path / "train.log").event_list
        assert event.step == step
