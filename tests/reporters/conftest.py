"""Reports made by hand: every kind of run that a rendering has to cope with."""

from __future__ import annotations

import math

import pytest

from postmortem.core.culprit import Culprit, Fidelity, Fix
from postmortem.core.model import Checkpoint, Diagnosis, Event, Finding, Problem, Source
from postmortem.core.report import Around, Report, RunReport
from postmortem.reporters import RenderOptions

HOSTILE = "<script>alert(1)</script>[bold]x[/bold]\x1b[31m]]>\u202e|`@all`\udc80"


def nan_run() -> RunReport:
    """A loss that became NaN after its gradient norm, which then spread to eleven more tags."""
    root = Finding(
        id="f1",
        code="NAN003",
        name="nonfinite-gradient",
        severity="error",
        tag="grad_norm",
        step=4820,
        message="grad_norm is inf while the loss is finite",
    )
    spread = [
        Finding(
            id=f"f{k + 2}",
            code="NAN001",
            name="nan-onset",
            severity="error",
            tag="train/loss" if k == 0 else f"layers/{k}/norm",
            rank=0,
            step=4821 + k,
            end_step=4900,
            wall_time=1.7e9,
            message="nan",
            evidence={"before": 2.31, "at": math.nan, "count": 12},
            because_of="f1",
        )
        for k in range(12)
    ]
    info = Finding(
        id="f14",
        code="RUN001",
        name="step-reset",
        severity="info",
        tag="train/loss",
        step=2000,
        message="resumed at step 2000 after step 1999",
    )
    curve = (2.9, 2.7, 2.6, 2.5, 2.4, 2.31, math.nan, math.nan)
    return RunReport(
        name="exp7",
        path="runs/exp7",
        verdict="failed",
        ended="out-of-memory",
        sources=(
            Source(kind="tensorboard", files=("runs/exp7/events.out.tfevents.1",), points=12345),
            Source(kind="text", files=("runs/exp7/train.out",), points=0),
        ),
        first_step=0,
        last_step=4900,
        diagnosis=Diagnosis(
            name="exploding-gradients",
            strength="likely",
            summary="The gradient norm grew 1500-fold in 12 steps, became inf at step 4820 and took the loss with it.",
            findings=("f1", "f2"),
            evidence_for=("grad_norm rose from 1.2 at step 4808 to 1834 at step 4819",),
            evidence_against=("no gradient clipping was seen in the config",),
            disprove=("the same step replayed in fp64 stays finite",),
            next=(
                "Replay the step: `postmortem replay runs/exp7 --checkpoint runs/exp7/ckpt-4750.pt --step 4820`",
                "lower lr from 3e-4 to 1e-4",
            ),
            last_good_step=4790,
            last_good_checkpoint="runs/exp7/ckpt-4750.pt",
        ),
        findings=(*spread, root, info),
        events=(
            Event(
                kind="cuda-oom",
                severity="error",
                file="runs/exp7/train.out",
                line=812,
                step=4900,
                rank=3,
                message="CUDA out of memory",
                fields={"gib": math.inf},
            ),
        ),
        problems=(
            Problem(
                path="runs/exp7/events.out.tfevents.1",
                offset=99,
                what="record cut at the end of the file",
                kept="12345 points",
                lost="17 bytes",
            ),
        ),
        checked=("NAN001", "NAN003", "RUN001"),
        not_checked=(("LOS006", "no validation loss found"),),
        around=(
            Around(
                tag="train/loss", role="loss", before_step=4819, before=2.31, at_step=4820, at=math.nan, curve=curve
            ),
            Around(
                tag="grad_norm",
                role="grad_norm",
                before_step=4819,
                before=1834.0,
                at_step=4820,
                at=math.inf,
                curve=(1.2, 1.1, 1.3, 1.2, 7.0, 1834.0, math.inf),
            ),
            Around(tag="lr", role="lr", before_step=4819, before=3e-4, at_step=4820, at=3e-4, curve=(3e-4,) * 6),
        ),
        notes=("steps were read from the field 'iter'",),
        checkpoints=(Checkpoint(path="runs/exp7/ckpt-4750.pt", step=4750, finite=True),),
    )


def culprit() -> Culprit:
    """What a replay of `nan_run` answers."""
    return Culprit(
        cause="forward-op",
        phase="forward",
        module="encoder.norm",
        op="aten::sqrt",
        file="model.py",
        line=41,
        code="        return x / torch.sqrt(var)",
        samples=(3, 17),
        step=4820,
        precision_only=False,
        fixes=(Fix(name="eps", cured=True, how="1e-8 under the root"), Fix(name="lower_lr", cured=False)),
        fidelity=Fidelity(
            ok=True, checkpoint="runs/exp7/ckpt-4750.pt", first_step=4750, compared=70, exact=69, max_rel_error=1e-6
        ),
        how=(
            "the step was run again from checkpoint 4750",
            "encoder.norm is the first module whose output is not finite",
        ),
        established="cured",
        suggestion="-        return x / torch.sqrt(var)\n+        return x / torch.sqrt(var + 1e-8)",
        fresh_state=False,
    )


def oom_run(name: str = "oom-1") -> RunReport:
    """A crash: all numbers are finite, the log shows the failure."""
    return RunReport(
        name=name,
        path=f"runs/{name}",
        verdict="failed",
        ended="crashed",
        sources=(Source(kind="text", files=(f"runs/{name}/slurm-1.out",), points=500),),
        first_step=1,
        last_step=250,
        diagnosis=Diagnosis(
            name="out-of-memory",
            strength="certain",
            summary="The GPU ran out of memory in the forward pass.",
            findings=("f1",),
            next=("halve the batch size",),
        ),
        findings=(
            Finding(
                id="f1",
                code="RUN003",
                name="crash",
                severity="error",
                step=250,
                message="torch.OutOfMemoryError: CUDA out of memory",
                evidence={"kind": "cuda-oom"},
            ),
        ),
        events=(
            Event(
                kind="cuda-oom",
                severity="error",
                file=f"runs/{name}/slurm-1.out",
                line=77,
                rank=0,
                message="torch.OutOfMemoryError: CUDA out of memory",
            ),
            Event(
                kind="victim",
                severity="info",
                file=f"runs/{name}/slurm-1.out",
                line=79,
                rank=1,
                message="Sending process 12 closing signal SIGTERM",
            ),
        ),
        checked=("NAN001",),
    )


def suspect_run() -> RunReport:
    return RunReport(
        name="slow-1",
        path="runs/slow-1",
        verdict="suspect",
        ended="completed",
        sources=(Source(kind="csv", files=("runs/slow-1/metrics.csv",), points=900),),
        first_step=0,
        last_step=299,
        findings=(
            Finding(
                id="f1",
                code="LOS003",
                name="loss-plateau",
                severity="warning",
                tag="loss",
                step=120,
                message="loss has not moved since step 120",
            ),
        ),
        checked=("NAN001", "LOS003"),
    )


def unjudged_run() -> RunReport:
    return RunReport(
        name="empty-1",
        path="runs/empty-1",
        verdict="not-judged",
        ended="unknown",
        sources=(Source(kind="wandb", files=("runs/empty-1/run-1.wandb",), points=0),),
        problems=(
            Problem(
                path="runs/empty-1/run-1.wandb",
                offset=0,
                what="7 bytes: the run was killed before anything was written",
                lost="everything",
            ),
        ),
        not_checked=(("NAN001", "no metrics"), ("LOS003", "no metrics")),
    )


def healthy_run(name: str) -> RunReport:
    return RunReport(
        name=name,
        path=f"runs/{name}",
        verdict="healthy",
        ended="completed",
        sources=(Source(kind="wandb", files=(f"runs/{name}/run-2.wandb",), points=4000),),
        first_step=0,
        last_step=999,
        checked=("NAN001", "LOS003"),
        around=(
            Around(
                tag="loss", role="loss", before_step=998, before=0.1, at_step=999, at=0.1, curve=(2.0, 1.0, 0.5, 0.1)
            ),
        ),
    )


def hostile_run() -> RunReport:
    """Every text that can come from outside is an attack on the page, the terminal or the build log."""
    return RunReport(
        name=HOSTILE,
        path=HOSTILE,
        verdict="failed",
        ended="crashed",
        sources=(Source(kind=HOSTILE, files=(HOSTILE,), points=1),),
        first_step=0,
        last_step=1,
        diagnosis=Diagnosis(
            name=HOSTILE,
            summary=HOSTILE,
            findings=("f1",),
            evidence_for=(HOSTILE,),
            evidence_against=(HOSTILE,),
            disprove=(HOSTILE,),
            next=(HOSTILE, f"postmortem replay '{HOSTILE}'"),
            last_good_step=0,
            last_good_checkpoint=HOSTILE,
        ),
        findings=(
            Finding(
                id="f1",
                code="NAN001",
                name="nan-onset",
                severity="error",
                tag=HOSTILE,
                step=1,
                message=HOSTILE + "\n::error::x",
                evidence={HOSTILE: HOSTILE},
            ),
            Finding(
                id="f2",
                code="NAN001",
                name="nan-onset",
                severity="error",
                tag=HOSTILE + "2",
                step=1,
                message=HOSTILE,
                because_of="f1",
            ),
        ),
        events=(
            Event(
                kind=HOSTILE,
                severity="error",
                file=HOSTILE,
                line=1,
                message=HOSTILE + "\r\n::error::x",
                fields={HOSTILE: HOSTILE},
            ),
        ),
        problems=(Problem(path=HOSTILE, what=HOSTILE, kept=HOSTILE, lost=HOSTILE),),
        checked=("NAN001",),
        not_checked=(("LOS003", HOSTILE),),
        around=(
            Around(
                tag=HOSTILE,
                role="loss",
                before_step=0,
                before=1.0,
                at_step=1,
                at=math.nan,
                curve=(1.0, math.nan, -math.inf),
            ),
        ),
        notes=(HOSTILE,),
        checkpoints=(Checkpoint(path=HOSTILE, step=0, finite=None),),
    )


def report_of(*runs: RunReport, problems: tuple[Problem, ...] = ()) -> Report:
    return Report(runs=runs, version="0.1.0", options={"fail_on": "error", "select": []}, problems=problems)


@pytest.fixture
def one_failed() -> Report:
    return report_of(nan_run())


@pytest.fixture
def many() -> Report:
    """One run of each verdict and cause, and a file that belongs to none."""
    runs = (
        healthy_run("good-1"),
        nan_run(),
        oom_run("oom-1"),
        suspect_run(),
        unjudged_run(),
        oom_run("oom-2"),
        healthy_run("good-2"),
    )
    return report_of(*runs, problems=(Problem(path="runs/notes.bin", what="no reader understands it"),))


@pytest.fixture
def everything() -> Report:
    """Every feature in one report: each verdict, a culprit, consequences, problems, text in many scripts, hostile
    text."""
    failed = nan_run()
    failed.culprit = culprit()
    unicode = suspect_run()
    unicode.name, unicode.path = "größer-学習", "runs/größer-学習"
    unicode.notes = ("Verlust → ∞ · 学習率 ½ 🙂",)
    runs = (healthy_run("good-1"), failed, oom_run(), unicode, unjudged_run(), hostile_run())
    return report_of(*runs, problems=(Problem(path="runs/notes.bin", what="no reader understands it"),))


@pytest.fixture
def hostile() -> Report:
    return report_of(hostile_run(), hostile_run(), nan_run(), problems=(Problem(path=HOSTILE, what=HOSTILE),))


@pytest.fixture
def one_hostile() -> Report:
    return report_of(hostile_run())


@pytest.fixture
def four_hundred() -> Report:
    """400 runs with twelve causes."""
    runs = [healthy_run(f"good-{k}") for k in range(250)]
    for k in range(150):
        run = oom_run(f"bad-{k}")
        run.diagnosis = Diagnosis(
            name=f"cause-{k % 12}",
            summary="Something went wrong. " * 8,
            findings=("f1",),
            next=("postmortem replay x",),
        )
        runs.append(run)
    return report_of(*runs)


@pytest.fixture
def empty_report() -> Report:
    return report_of()


@pytest.fixture
def plain() -> RenderOptions:
    return RenderOptions(width=80)
