"""What a person at a terminal sees."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

import postmortem
from postmortem.core.model import Event, Finding
from postmortem.core.report import Report
from postmortem.reporters import RenderOptions
from postmortem.reporters.text import render
from tests.reporters.conftest import healthy_run, nan_run, oom_run, report_of


def lines_of(report: Report, width: int = 80, **options: bool) -> list[str]:
    return render(report, RenderOptions(width=width, **options)).splitlines()


def test_the_first_line_says_what_happened_and_where(one_failed):
    """Verdict, run, what, in which tag, at which step: all in the first line."""
    assert lines_of(one_failed)[0] == "FAILED      exp7 · NAN003 nonfinite-gradient in grad_norm at step 4820"


def test_one_run_has_values_story_findings_last_good_and_next_step(one_failed):
    """One page has everything that an engineer needs."""
    text = render(one_failed, RenderOptions(width=100))
    for said in (
        "ran out of memory",
        "Likely cause: exploding-gradients. The gradient norm grew 1500-fold",
        "step 4819  step 4820",
        "nan-onset  in 12 tags, first train/loss on rank 0 at step 4821",
        "step 4790, checkpoint runs/exp7/ckpt-4750.pt",
        "cuda-oom  train.out:812, rank 3, step 4900",
        "at byte 99",
        "no gradient clipping was seen",
        "1 check: no validation loss found (LOS006)",
    ):
        assert said in text, said


def test_consequences_stand_indented_under_their_root(one_failed):
    """Findings are in causal order, not in that of the report."""
    lines = lines_of(one_failed, 120)
    root = next(i for i, line in enumerate(lines) if "● NAN003" in line)
    assert "└ NAN001" in lines[root + 1]
    assert lines[root + 1].index("└") > lines[root].index("●")


def test_sparklines_mark_what_is_not_finite(one_failed):
    """NaN is a cross and inf an arrow, at the end of the curves where they are."""
    text = render(one_failed, RenderOptions(width=100))
    assert "▁××" in text
    assert "█↑" in text


def test_a_command_is_never_broken(one_failed):
    """Commands are on one line, whatever the width, so that they can be copied."""
    command = "$ postmortem replay runs/exp7 --checkpoint runs/exp7/ckpt-4750.pt --step 4820"
    assert any(line.strip().endswith(command) for line in lines_of(one_failed, 60))


@pytest.mark.parametrize("width", [50, 60, 80, 120])
@pytest.mark.parametrize("report", ["one_failed", "many", "four_hundred", "one_hostile"])
def test_width_is_respected(request, report, width):
    """No line is wider than the terminal, except a command that is to be copied."""
    for line in lines_of(request.getfixturevalue(report), width):
        assert cell_len(line) <= width or "$ " in line, line


def test_without_colour_there_are_no_escape_codes(many, hostile):
    """A pipe or a file gets plain text, also from logs that bring their own codes."""
    for report in (many, hostile):
        assert "\x1b" not in render(report, RenderOptions(width=80))


def test_with_colour_only_our_own_codes_come_through(one_hostile):
    """Colour codes are ours; the escape in the log's text is shown, not obeyed."""
    text = render(one_hostile, RenderOptions(width=200, color=True))
    assert "\x1b[1;31mFAILED" in text
    assert "\\x1b[31m" in text
    assert "\x1b[31m]]>" not in text


def test_hostile_text_is_shown_as_it_is(one_hostile):
    """Rich markup in a log stays text, control characters and direction overrides become visible, lone surrogates can
    be printed."""
    text = render(one_hostile, RenderOptions(width=300))
    assert "[bold]x[/bold]" in text
    assert "\\u202e" in text
    text.encode("utf-8")


def test_many_runs_are_grouped_by_cause_worst_first(many):
    """The same cause is one entry with a count; healthy runs are one line; what could not be judged is named."""
    lines = lines_of(many, 100)
    assert lines[0].strip() == "7 runs: 3 failed, 1 suspect, 1 not judged, 2 healthy"
    order = [line.split()[0] for line in lines if line[:1].strip()]
    assert [w for w in order if w.isupper()] == ["FAILED", "FAILED", "SUSPECT", "NOT", "HEALTHY"]
    text = "\n".join(lines)
    assert "out-of-memory (RUN003 crash)  2 runs" in text
    assert text.count("halve the batch size") == 1
    assert "empty-1" in text
    assert "HEALTHY     2 runs: good-1, good-2" in text
    assert "runs/notes.bin: no reader understands it" in text


def test_four_hundred_runs_fit_two_pages(four_hundred):
    """Many causes get one entry each."""
    lines = lines_of(four_hundred, 100)
    assert len(lines) < 100
    assert all(f"cause-{k}, possible cause (RUN003 crash)" in "\n".join(lines) for k in range(12))


def test_unknown_exceptions_are_grouped_by_message(many):
    """Two runs that failed with the same words but other numbers are one cause; other words are another."""
    runs = [many["oom-1"], many["oom-2"], many["exp7"]]
    for run, message in zip(runs, ("KeyError: 'a' at 0x7f12", "KeyError: 'a' at 0x99", "ValueError: b"), strict=True):
        run.diagnosis = None
        run.events = (Event(kind="generic-exception", severity="error", file="x.out", line=7, message=message),)
        run.findings = (
            Finding(
                id="f1",
                code="RUN003",
                name="crash",
                severity="error",
                message=message,
                evidence={"file": "x.out", "line": 7},
            ),
        )
    many.runs = tuple(runs)
    text = render(many, RenderOptions(width=120))
    assert "crash: KeyError: 'a' at # (RUN003)  2 runs" in text.replace(" (RUN003 crash)", " (RUN003)")
    assert "crash: ValueError: b" in text


def test_verbose_tells_everything(many, one_failed):
    """Every member of a fold, every reason, and in a triage the story of every run that is not healthy."""
    text = "\n".join(lines_of(one_failed, 120, verbose=True))
    assert "no validation loss found" in text
    assert "steps were read from the field 'iter'" in text
    told = "\n".join(lines_of(many, 120, verbose=True))
    assert "Likely cause: exploding-gradients. The gradient norm grew" in told
    assert "FAILED      oom-2 · RUN003 crash after step 250: torch.OutOfMemoryError" in told


def test_nothing_found_in_nothing(empty_report):
    """A report without runs says so."""
    assert "No run was found." in render(empty_report, RenderOptions())


def test_a_healthy_run_is_short(many):
    """Silence on healthy runs: what was checked, and nothing else."""
    many.runs = (many["good-1"],)
    assert len(lines_of(many, 100)) <= 5
    assert "2 checks found nothing wrong" in render(many, RenderOptions())


def test_circular_causes_still_list_every_finding(many):
    """A plugin that names causes in a circle loses no finding and hangs nothing."""
    run = many["exp7"]
    circle = [
        Finding(
            id=f"c{k}",
            code=f"XYZ00{k}",
            name="x",
            severity="error",
            message=f"m{k}",
            step=k,
            because_of=f"c{(k + 1) % 3}",
        )
        for k in range(3)
    ]
    run.findings, run.diagnosis = tuple(circle), None
    many.runs = (run,)
    assert all(f"XYZ00{k}" in render(many, RenderOptions()) for k in range(3))


def test_the_users_own_line_and_what_the_message_lacks_stand_under_an_event(one_failed):
    """Under an event: the innermost line of the user's code, suspects, formats; nothing that the message already
    says."""
    frame = {"file": "train.py", "line": 33, "function": "step", "code": "loss.backward()"}
    fields = {"frame": frame, "suspects": [1, 11], "op": "ALLREDUCE", "exception": "ValueError", "requested_bytes": 5}
    one_failed.runs[0].events = (
        Event(
            kind="nccl-timeout", severity="error", file="x.out", line=7, message="timeout of ALLREDUCE", fields=fields
        ),
    )
    text = " ".join("\n".join(lines_of(one_failed, 120)).split())
    assert "at train.py:33 in step: loss.backward()" in text
    assert "suspect ranks 1, 11" in text
    assert "op ALLREDUCE" not in text
    assert "requested" not in text


@pytest.mark.parametrize(("reason", "told"), [(True, True), (False, False)], ids=["with a reason", "the log line only"])
def test_the_triage_page_tells_why_a_run_crashed_where_that_is_known(tmp_path, reason, told):
    """A reason that the numbers of a message give is shown; a summary that only repeats the headline is not."""
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 GiB."
    message += " GPU 0 has a total capacity of 80.00 GiB of which 70.00 GiB is free." if reason else ""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "train.out").write_text(
        f'Traceback (most recent call last):\n  File "train.py", line 6, in <module>\n{message}\n'
    )
    (tmp_path / "b" / "train.out").write_text("".join(f"step {i} loss {2 / (1 + i):.4f}\n" for i in range(40)))
    text = render(postmortem.scan(tmp_path), RenderOptions(width=120))
    assert ("One tensor of 90 GiB is larger than all memory of GPU 0 (80 GiB)" in text) == told
    assert ("The program failed" in text) == told


def test_each_run_of_a_group_has_its_own_explanation_and_next_step():
    """Two runs with one cause but other numbers: neither borrows the sentence of the other."""
    runs = [oom_run("first"), oom_run("second")]
    for k, run in enumerate(runs):
        run.diagnosis = replace(run.diagnosis, summary=f"Tensor {k} did not fit.", next=(f"shrink tensor {k}",))
    text = render(report_of(*runs), RenderOptions(width=100))
    assert [text.count(f"Tensor {k} did not fit.") for k in (0, 1)] == [1, 1]
    assert [text.count(f"shrink tensor {k}") for k in (0, 1)] == [1, 1]


@pytest.mark.parametrize("same", [True, False])
def test_what_all_runs_of_a_group_have_stands_once_and_the_rest_at_each(same):
    """Six runs with one sentence and one next step have them once; with six of them, each has its own."""
    runs = [oom_run(f"run-{k}") for k in range(6)]
    for k, run in enumerate(runs):
        own = 0 if same else k
        run.diagnosis = replace(run.diagnosis, summary=f"Tensor {own} did not fit.", next=(f"shrink tensor {own}",))
    text = render(report_of(*runs), RenderOptions(width=100))
    for words in ("Tensor {} did not fit.", "shrink tensor {}"):
        assert [text.count(words.format(k)) for k in range(6)] == ([1] + [0] * 5 if same else [1] * 6)


def sweep(runs: int) -> Report:
    """Half of the runs are healthy, the others have a NaN, each at a step of its own, after a long name."""
    bad = []
    for k in range(runs // 2):
        run = nan_run()
        run.name, run.path = f"sweep-{k:03d}-llama-7b-rate{k}e-5", f"runs/sweep-{k:03d}-llama-7b-rate{k}e-5"
        run.findings = (replace(run.findings[1], id="f1", tag="train/loss", step=1000 + k, because_of=None),)
        run.diagnosis = replace(run.diagnosis, name=f"cause-{k % 4}", next=(f"replay step {1000 + k}", "clip at 1"))
        run.problems = ()
        bad.append(run)
    return report_of(*bad, *(healthy_run(f"good-{k}") for k in range(runs - len(bad))))


@pytest.mark.parametrize("width", [80, 120])
def test_forty_runs_fit_on_a_screen_with_a_row_for_each_that_is_not_healthy(width):
    """Each row has its name, its step, the values of its finding and their curve."""
    lines = lines_of(sweep(40), width)
    assert len(lines) <= 40
    for k in range(20):
        (row,) = [line for line in lines if f"sweep-{k:03d}" in line]
        assert f"step {1000 + k}  2.31 → nan  " in row
        assert row.rstrip().endswith("×")
    assert sum("clip at 1" in line for line in lines) == 4


def test_four_hundred_runs_are_groups_with_counts():
    """Of more runs than rows the names of the first, their number and the next step that all have."""
    lines = lines_of(sweep(400))
    assert len(lines) <= 40
    text = " ".join("\n".join(lines).split())
    for k in range(4):
        names = f"sweep-{k:03d}-llama-7b-rate{k}e-5@{1000 + k}"
        assert f"cause-{k}, likely cause (NAN001 nan-onset in train/loss) 50 runs {names}" in text
    assert text.count("clip at 1") == 4


@pytest.mark.parametrize("width", [60, 80, 120])
def test_curves_shrink_with_the_page(width):
    """Long names leave a curve of a few columns, on the page of many runs and on that of one."""
    report = sweep(12)
    for run in report.runs[:6]:
        run.name = run.path = f"{run.name}-with-a-name-that-is-longer-than-half-of-the-page"
    rows = [line for line in lines_of(report, width) if "→ nan" in line]
    assert len(rows) == 6
    assert all(re.search("[▁-█]{2,}×", row) for row in rows)
    run = report.runs[0]
    run.around = tuple(replace(a, tag="a/tag/of/a/deep/tree/of/modules/" + a.tag) for a in run.around)
    curves = [line for line in lines_of(report_of(run), width) if "  2.31  " in line and "train/loss " in line]
    assert len(curves) == 1
    assert re.search("[▁-█]{2,}×", curves[0])


def test_a_row_has_the_values_of_its_own_finding(many):
    """What made the finding, not the two points around its step; of a restart the steps; of a crash what it said."""
    spike, restart = many["exp7"], many["slow-1"]
    spike.findings = (
        Finding(
            id="f1",
            code="LOS001",
            name="loss-spike",
            severity="error",
            tag="train/loss",
            step=4820,
            message="jumps",
            evidence={"before": 0.25, "peak": 99.5},
        ),
    )
    restart.findings = (
        Finding(
            id="f1",
            code="RUN001",
            name="step-reset",
            severity="warning",
            tag="loss",
            step=120,
            message="steps go back",
            evidence={"before": 169, "after": 120},
        ),
    )
    text = "\n".join(lines_of(many, 100))
    assert "exp7  step 4820  0.25 → 99.5  " in text
    assert "slow-1  step 120  step 169 → 120" in text
    assert "oom-1  step 250  torch.OutOfMemoryError: CUDA out of memory" in text
