"""load and scan: what notebooks and plugins call."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from pathlib import Path

import pytest

import postmortem
from postmortem.core.config import Config
from postmortem.core.errors import UsageError


@pytest.fixture
def failed_run(tmp_path):
    """A run whose loss is NaN from step 60 on, with a checkpoint every 20 steps, non-finite from 60 on."""
    torch = pytest.importorskip("torch")
    folder = tmp_path / "exp"
    folder.mkdir()
    rows = [f"{i},{'nan' if i >= 60 else 2 / (1 + i / 10)}\n" for i in range(100)]
    (folder / "metrics.csv").write_text("step,loss\n" + "".join(rows))
    for step in range(20, 100, 20):
        torch.save(
            {"model": {"w": torch.full((3,), math.nan if step >= 60 else 1.0)}, "step": step},
            folder / f"step_{step:03d}.pt",
        )
    return folder


def test_public_names():
    """Everything in __all__ exists and is sorted; nothing else is promised."""
    assert postmortem.__all__ == sorted(postmortem.__all__)
    for name in postmortem.__all__:
        assert getattr(postmortem, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = postmortem.nothing


def test_load_one_run(tmp_path):
    """load gives the frame with exact values; a log without numbers gives empty frames with all columns."""
    (tmp_path / "a.csv").write_text("step,loss\n1,2.5\n2,nan\n")
    frame = postmortem.load(tmp_path / "a.csv").frame
    assert frame["step"].tolist() == [1, 2]
    assert frame["value"].isna().tolist() == [False, True]
    (tmp_path / "b.log").write_text("nothing to see here\n")
    run = postmortem.load(tmp_path / "b.log")
    assert len(run.frame) == 0
    assert list(run.frame.columns) == list(frame.columns)


def test_scan_finds_the_last_good_checkpoint_by_looking(failed_run):
    """A failed run's newest weights are opened: the bad ones are findings, the last good one is named."""
    (run,) = postmortem.scan(failed_run).runs
    assert run.verdict == "failed"
    assert run.diagnosis is not None
    assert run.diagnosis.last_good_step == 59
    assert run.diagnosis.last_good_checkpoint == str(failed_run / "step_040.pt")
    assert any(f"postmortem replay {failed_run} -- COMMAND" in line for line in run.diagnosis.next)
    bad = next(f for f in run.findings if f.name == "checkpoint-nonfinite")
    assert [c["step"] for c in bad.evidence["checkpoints"]] == [60, 80]
    assert bad.because_of == run.diagnosis.findings[0]


@pytest.fixture
def calm_log(tmp_path):
    """A log without any error, and a function that saves the weights of a step beside it, with NaN in some of them."""
    torch = pytest.importorskip("torch")
    rows = [f"{i},{2 / (1 + i / 10)}\n" for i in range(100)]
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(rows))

    def save(step, nan=False):
        rare = torch.full((3,), math.nan if nan else 1.0)
        torch.save({"model": {"rare.weight": rare, "w": torch.ones(2)}}, tmp_path / f"step_{step}.pt")

    return tmp_path, save


def test_non_finite_weights_under_a_calm_log(calm_log):
    """A parameter that is hardly used may be NaN while the loss is fine: the newest weights are looked into."""
    folder, save = calm_log
    for step in (20, 40, 60, 80):
        save(step, nan=step >= 60)
    (run,) = postmortem.scan(folder).runs
    assert run.verdict == "failed"
    (bad,) = (f for f in run.findings if f.severity == "error")
    assert (bad.name, bad.step) == ("checkpoint-nonfinite", 60)
    assert "rare.weight" in bad.message
    assert [c.finite for c in run.checkpoints] == [None, True, False, False]


def test_only_the_newest_weights_of_a_calm_run_are_opened(calm_log, monkeypatch):
    """A scan stays fast: older checkpoints are not opened, nor is one that is large; that is said."""
    folder, save = calm_log
    for step in (20, 40, 60):
        save(step)
    (run,) = postmortem.scan(folder).runs
    assert (run.verdict, [c.finite for c in run.checkpoints]) == ("healthy", [None, None, True])
    monkeypatch.setattr("postmortem.checkpoints.of_run._NEWEST", 100)
    (run,) = postmortem.scan(folder).runs
    assert [c.finite for c in run.checkpoints] == [None, None, None]
    assert any("step_60.pt was not checked" in note and "--checkpoints" in note for note in run.notes)
    assert {"CKP001", "CKP002"} <= {code for code, _ in run.not_checked}


def test_a_checkpoint_that_may_be_being_written_is_left_alone(calm_log):
    """Half a file beside a log that is seconds old is a training that saves, not a broken checkpoint."""
    folder, save = calm_log
    for step in (20, 40):
        save(step)
    (folder / "metrics.csv").unlink()
    rows = [json.dumps({"step": i, "loss": 2 / (1 + i), "time": time.time() - 50 + i}) for i in range(50)]
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "step_40.pt").write_bytes((folder / "step_40.pt").read_bytes()[:300])
    os.utime(folder / "step_20.pt", (1e9, 1e9))
    (run,) = postmortem.scan(folder).runs
    assert (run.ended, run.verdict) == ("running", "healthy")
    assert [c.finite for c in run.checkpoints] == [True, None]


def test_a_truncated_checkpoint_is_named(failed_run):
    """The newest checkpoint, cut by the kill, is unreadable; the one before it counts."""
    newest = failed_run / "step_080.pt"
    newest.write_bytes(newest.read_bytes()[:400])
    (run,) = postmortem.scan(failed_run).runs
    assert [f.step for f in run.findings if f.name == "checkpoint-unreadable"] == [80]


def test_select_ignore_and_detector_options(failed_run):
    """Selection by code prefix and by name; an unknown option of a detector is an error that names it."""
    only = postmortem.scan(failed_run, config=Config(select=("NAN",))).runs[0]
    assert {f.name for f in only.findings} == {"nan-onset"}
    ignored = postmortem.scan(failed_run, config=Config(ignore=("nan-onset",))).runs[0]
    assert "nan-onset" not in {f.name for f in ignored.findings}
    with pytest.raises(postmortem.PostmortemError, match=r"detectors.loss-spike: unknown option 'zz'"):
        postmortem.scan(failed_run, config=Config(detectors={"loss-spike": {"zz": 1}}))


def test_roles_given_by_hand(tmp_path, postmortem):
    """A tag that no name rule knows gets its role from --role or from the configuration."""
    rows = "".join(f"{i},{2 / (1 + i / 10)}\n" for i in range(100))
    (tmp_path / "metrics.csv").write_text("step,zorkmid\n" + rows)
    shown = json.loads(postmortem("show", tmp_path, "--role", "zorkmid=loss", "--format", "json").out)
    assert [(t["tag"], t["role"]) for t in shown["tags"]] == [("zorkmid", "loss")]


def test_configuration_file(tmp_path, postmortem, monkeypatch):
    """[tool.postmortem] of the nearest pyproject.toml counts; a key that does not exist is an error with a
    suggestion."""
    (tmp_path / "metrics.csv").write_text(
        "step,loss\n" + "".join(f"{i},{'nan' if i > 50 else 1.0 / (i + 1)}\n" for i in range(80))
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.postmortem]\nfail-on = "never"\n')
    assert postmortem("scan", "metrics.csv").code == 0
    (tmp_path / "pyproject.toml").write_text('[tool.postmortem]\nfailon = "never"\n')
    called = postmortem("scan", "metrics.csv")
    assert called.code == 2
    assert "did you mean 'fail-on'" in called.err


def test_findings_frame_and_html(failed_run):
    """Notebooks get a frame of findings and HTML without scripts."""
    report = postmortem.scan(failed_run)
    frame = report.findings_frame()
    assert frame.loc[frame["name"] == "nan-onset", "step"].tolist() == [60]
    for thing in (report, report.runs[0]):
        html = thing._repr_html_()
        assert "nan-onset" in html
        assert "<script" not in html
    assert report["exp"] is report.runs[0]
    with pytest.raises(KeyError, match="available"):
        report["nothing"]


def test_baseline(tmp_path, postmortem):
    """--baseline says where a run parts from a good one."""
    for name, lr in (("good", 0.1), ("bad", 0.3)):
        (tmp_path / name).mkdir()
        rows = "".join(f"{i},{2 / (1 + i / 10) + (0 if lr == 0.1 or i < 30 else 1)}\n" for i in range(80))
        (tmp_path / name / "metrics.csv").write_text("step,loss\n" + rows)
        (tmp_path / name / "config.json").write_text(json.dumps({"lr": lr}))
    called = postmortem("scan", tmp_path / "bad", "--baseline", tmp_path / "good", "--format", "json")
    notes = json.loads(called.out)["runs"][0]["notes"]
    assert any("first differs from good at step 30" in n and "lr 0.3 instead of 0.1" in n for n in notes)


def test_stride_warnings_name_the_parameters_that_could_be_meant(tmp_path):
    """A DDP stride warning beside a checkpoint lists the saved parameters of that shape, not their optimizer state."""
    torch = pytest.importorskip("torch")
    warning = (
        "[W1017 12:09:57.211698780 reducer.cpp:327] Warning: Grad strides do not match bucket view strides. "
        "This is not an error, but may impair performance.\n"
        "grad.sizes() = [9, 1, 3, 3], strides() = [9, 1, 3, 1]\nbucket_view.sizes() = [9, 1, 3, 3], strides() = [9, "
        "9, 3, 1]\n"
    )
    (tmp_path / "train.out").write_text(warning + "".join(f"step={i} loss={1 / (i + 1):.4f}\n" for i in range(30)))
    weights = {"depthwise.weight": torch.ones(9, 1, 3, 3), "head.weight": torch.ones(3, 9)}
    optimizer = {"state": {0: {"exp_avg": torch.ones(9, 1, 3, 3)}}}
    torch.save({"model": weights, "optimizer": optimizer, "step": 20}, tmp_path / "step_20.pt")
    (event,) = [e for e in postmortem.load(tmp_path).event_list if e.kind == "ddp-stride"]
    assert [name.removeprefix("model.") for name in event.fields["parameters"]] == ["depthwise.weight"]


def test_scan_with_replay_carries_the_culprit(sample_runs, postmortem):
    """``scan --replay`` reruns the step at fault; the report, as JSON and as text, names the line and what cured it."""
    pytest.importorskip("torch")
    run = sample_runs / "nan-log-of-zero"
    called = postmortem("scan", run, "--replay", "--format", "json")
    told = json.loads(called.out)["runs"][0]
    culprit = told["culprit"]
    assert (
        f"`postmortem replay {run} --step 156 --checkpoint {run / 'step_000139.pt'}`" in told["diagnosis"]["next"][-2]
    )
    assert (culprit["phase"], culprit["op"], culprit["module"], culprit["samples"]) == (
        "forward",
        "log",
        "frontend",
        [30],
    )
    text = postmortem("scan", run, "--replay").out
    assert "torch.log(energy)" in text
    assert "by drop_sample (without sample 30; the loss is then " in " ".join(text.split())
    assert text.index("train.py:33") < text.index("bad-batch-or-numerics")


def test_a_replay_that_cannot_be_made_is_a_note(failed_run, postmortem):
    """A failed run without a recipe is reported all the same, with a note that says what a replay lacks."""
    called = postmortem("scan", failed_run, "--replay", "--format", "json")
    run = json.loads(called.out)["runs"][0]
    assert run["verdict"] == "failed"
    assert run["culprit"] is None
    assert any(n.startswith("replay: ") and "recipe.py" in n for n in run["notes"])
    (line,) = called.err.splitlines()
    assert line.startswith(
        f"postmortem: {failed_run.name} was not replayed: no recipe.py in or beside the run; instead: "
    )
    assert f"postmortem replay {failed_run} -- COMMAND" in line


def test_reprs_are_one_line_and_print_tells_the_story(tmp_path):
    """In a console a report, a run and its numbers are one line each; `print` shows what the command line shows."""
    (tmp_path / "metrics.csv").write_text(
        "step,loss\n" + "".join(f"{i},{'nan' if i > 60 else 2 - 0.01 * i}\n" for i in range(90))
    )
    report = postmortem.scan(tmp_path)
    assert repr(report) == "<Report of 1 runs: 1 failed>"
    for thing in (report.runs[0], postmortem.load(tmp_path)):
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 300
    assert "NAN001 nan-onset in loss at step 61" in str(report)
    assert str(report) == str(report.runs[0])


def test_several_runs_are_listed_by_paths_that_load(tmp_path):
    """The error for a folder of several runs lists paths: each of them is one run."""
    for name in ("a.log", "b.out", "b.err", "c/metrics.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(
            "step,loss\n1,2.0\n2,1.5\n" if name.endswith(".csv") else "step=1 loss=2.0\nstep=2 loss=1.5\n"
        )
    with pytest.raises(UsageError) as caught:
        postmortem.load(tmp_path)
    listed = str(caught.value).partition("load one of them: ")[2].split(", ")
    assert len(listed) == 3
    assert all(postmortem.load(path).n_points for path in listed)


def test_a_checkpoint_is_told_from_a_log(tmp_path):
    """Weights given as a run are named as such, with the command that looks into them."""
    (tmp_path / "step_10.pt").write_bytes(b"PK\x03\x04")
    (problem,) = postmortem.load(tmp_path / "step_10.pt").problems
    assert "postmortem checkpoints" in problem.what


def test_epochs_are_placed_by_what_the_optimizer_counted(failed_run):
    """Of checkpoints that say their epoch alone, the optimizer's own count tells which is from before the fault."""
    torch = pytest.importorskip("torch")
    for old in failed_run.glob("*.pt"):
        old.unlink()
    for epoch in range(5):
        done = 20 * (epoch + 1)
        state = {
            "state": {0: {"step": torch.tensor(float(done)), "exp_avg": torch.ones(3)}},
            "param_groups": [{"params": [0]}],
        }
        weights = {"w": torch.full((3,), math.nan if done > 60 else 1.0)}
        torch.save({"model": weights, "optimizer": state, "epoch": epoch}, failed_run / f"epoch_{epoch}.pt")
    (run,) = postmortem.scan(failed_run).runs
    assert run.diagnosis.last_good_checkpoint == str(failed_run / "epoch_1.pt")
    assert [c.step for c in run.checkpoints] == [20, 40, 60, 80, 100]


def test_parts_of_a_step_are_good_together(failed_run):
    """Of files of one step the one is no good without the other, and both are looked into."""
    torch = pytest.importorskip("torch")
    for path in sorted(failed_run.glob("*.pt")):
        step = int(path.stem[-3:])
        path.rename(failed_run / f"G_{step}.pt")
        torch.save({"model": {"w": torch.full((3,), math.nan if step >= 40 else 1.0)}}, failed_run / f"D_{step}.pt")
    (run,) = postmortem.scan(failed_run).runs
    assert run.diagnosis.last_good_checkpoint == str(failed_run / "G_20.pt")


def test_verbs_take_a_run_a_report_or_a_path(failed_run):
    """One run can be given as what `load` or `judge` returned, or as its path; the answer is the same."""
    run = postmortem.load(failed_run)
    report = postmortem.judge(run)
    without_run = postmortem.scan(failed_run, keep=False)[0]
    given = (report, without_run, failed_run, str(failed_run))
    assert {repr(postmortem.judge(one)) for one in given} == {repr(report)}
    assert postmortem.judge(report).run is run
    assert {postmortem.compare(one, run).first for one in given} == {None}
    assert [postmortem.checkpoints(one) == postmortem.checkpoints(run) for one in given] == [True] * 4
    assert len(postmortem.checkpoints(run)) == 4
    assert "is identical to exp" in postmortem.scan(_copied(failed_run), baseline=run)[0].notes[-1]


def _copied(folder):
    return Path(shutil.copytree(folder, folder.parent / "other" / "copied"))


def test_a_replay_takes_a_run_or_a_report(sample_runs):
    """`replay` finds log, recipe and checkpoint by the path of a run that was loaded or judged."""
    pytest.importorskip("torch")
    run = postmortem.load(sample_runs / "nan-log-of-zero")
    for given in (run, postmortem.judge(run)):
        assert postmortem.replay(given, fix=False).culprit.op == "log"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda report: postmortem.judge(3), r"judge() takes a path, a Run or a RunReport, not int"),
        (
            lambda report: postmortem.compare(report[0], None),
            r"compare() takes a path, a Run or a RunReport, not NoneType",
        ),
        (lambda report: postmortem.judge(report), r"not Report: choose one of its runs, such as report[0]"),
        (lambda report: postmortem.replay(report), r"not Report: choose one of its runs, such as report[0]"),
        (
            lambda report: postmortem.checkpoints([report[0]]),
            r"checkpoints() takes a path, a Run or a RunReport, not list",
        ),
        (lambda report: postmortem.load(report[0]), r"load() takes a path, not RunReport"),
        (lambda report: postmortem.scan(report[0].run), r"scan() takes a path, not Run"),
        (lambda report: postmortem.scan([report[0]]), r"scan() takes a path, not RunReport"),
    ],
)
def test_a_wrong_kind_of_argument_is_named(failed_run, call, message):
    """What a verb cannot take is a TypeError of one line that says what it takes."""
    report = postmortem.scan(failed_run)
    with pytest.raises(TypeError) as caught:
        call(report)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scan_of_nothing(tmp_path):
    """An empty list of paths is an error of its own."""
    with pytest.raises(UsageError, match="scan: no path was given"):
        postmortem.scan([])


def test_a_replay_without_a_recipe_says_how_to_give_one(failed_run):
    """The message names the option of the command and the argument in Python."""
    pytest.importorskip("torch")
    with pytest.raises(postmortem.ReplayError, match=r"--recipe FILE.py\[:function\] \(recipe= in Python\)"):
        postmortem.replay(failed_run)
