"""The diagnosis of a crash: what was raised, by what, and where in the user's code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import postmortem
from postmortem.core.model import Event
from postmortem.diagnoses.crash import Crash
from postmortem.readers.text.failures import find_events
from postmortem.reporters.shared.commands import with_commands
from postmortem.reporters.shared.outline import headline
from tests.diagnoses.cases import NAN_FROM_200, quiet, tells

MISSING = Event(
    kind="not-found", severity="error", message="FileNotFoundError: shard-7.tar", file="train.out", line=9, step=399
)


@tells(Crash, name="crash: not-found", root="crash", step=399, event_list=[MISSING], ended="crashed")
def an_exception_after_a_calm_course(course):
    return course()


@quiet(Crash, event_list=[MISSING], ended="completed")
def an_exception_that_the_run_survived(course):
    return course()


WORKER = """step 10 loss 0.93
step 11 loss 0.91
Traceback (most recent call last):
  File "train.py", line 20, in <module>
    for x, y in loader:
  File "/opt/lib/python3.11/site-packages/torch/_utils.py", line 794, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch
    data = [self.dataset[idx] for idx in possibly_batched_index]
  File "data.py", line 13, in __getitem__
    raise ValueError(f"corrupt sample {i}")
ValueError: corrupt sample 900
"""


RAISED = 'Traceback (most recent call last):\n  File "train.py", line 4, in <module>\n    batch = next(it)\n'


def test_a_crash_names_what_was_raised_first_and_the_users_line(tmp_path: Path) -> None:
    """Of an exception out of a data-loader worker the story tells the exception inside, and the line of the user's
    code."""
    (tmp_path / "train.log").write_text(WORKER)
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert "corrupt sample 900" in run.diagnosis.summary
    assert 'raised at data.py:13 in __getitem__: raise ValueError(f"corrupt sample {i}")' in run.diagnosis.evidence_for


def test_what_would_confirm_a_crash_speaks_not_against_it(tmp_path: Path) -> None:
    """What a signature says would confirm it is advice, not evidence against."""
    (tmp_path / "train.log").write_text(WORKER)
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert run.diagnosis.evidence_against == ()
    assert any(line.startswith("to look for, not checked here: ") for line in run.diagnosis.next)


def test_the_command_of_a_killed_run_has_its_job(tmp_path: Path) -> None:
    """From the log or a name that Slurm gives; without either it stays a placeholder. It is shown to be copied."""
    killed = "step 10 loss 0.93\nstep 11 loss 0.91\njob.sh: line 4: 4242 Killed   python train.py\n"
    for n, (name, head, job) in enumerate(
        (("slurm-48151623.out", "", "48151623"), ("a.log", "SLURM_JOB_ID=77012\n", "77012"), ("b.log", "", "JOB"))
    ):
        folder = tmp_path / str(n)
        folder.mkdir()
        (folder / name).write_text(head + killed)
        [run] = postmortem.scan(folder).runs
        assert run.diagnosis is not None
        shown = [command for action in run.diagnosis.next for command in with_commands(action)[1]]
        assert f"sacct -j {job} -o JobID,State,ExitCode,MaxRSS,ReqMem" in shown


def test_a_kill_comes_after_the_last_step_that_was_logged(tmp_path: Path) -> None:
    """That step is the last good one as well: no sentence says that the run failed at it."""
    (tmp_path / "train.log").write_text("step 10 loss 0.93\nstep 11 loss 0.91\njob.sh: line 4: 42 Killed   train\n")
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert run.diagnosis.last_good_step == 11
    assert headline(run).startswith("RUN003 crash after step 11")
    assert "at step 11" not in str(run)


def test_what_a_logger_said_of_an_exception_is_the_same_crash(tmp_path: Path) -> None:
    """An exception that a logger names before its traceback, also in a second file, is one crash, placed at its
    traceback."""
    said = (
        "step 10 loss 0.9\nstep 11 loss 0.8\nERROR Engine run is terminating due to exception: mat1 and mat2 must "
        "have the same dtype\n"
    )
    raised = 'Traceback (most recent call last):\n  File "model.py", line 7, in forward\n    return x @ w\n'
    raised += "RuntimeError: mat1 and mat2 must have the same dtype\n"
    for name in ("train.log", "train.out"):
        (tmp_path / name).write_text(said + raised)
    [run] = postmortem.scan(tmp_path).runs
    [crash] = [f for f in run.findings if f.name == "crash"]
    assert crash.evidence["frame"]["file"] == "model.py"


def test_a_signature_that_sends_the_reader_on_gives_the_advice_itself(tmp_path: Path) -> None:
    """Advice that refers to another signature shows that signature's fixes."""
    (tmp_path / "train.log").write_text("step 10 loss 0.9\nstep 11 loss 0.8\nLoss is nan, stopping training\n")
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert not any(line.startswith("See ") for line in run.diagnosis.next)
    assert "The NaN terms are the suspects." in run.diagnosis.next
    assert len(run.diagnosis.next) > 3


def test_the_crash_of_another_rank_in_its_own_file_is_the_root(tmp_path: Path) -> None:
    """A closed connection on rank 0 is a consequence of the exception on rank 1, also where each has its own file."""
    closed = (
        "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:10163. This is typically caused by a "
        "remote worker crashing."
    )
    for rank, message in ((0, closed), (1, "RuntimeError: bad shard: expected 16 features, got 12")):
        raised = (
            f'Traceback (most recent call last):\n  File "train.py", line 1{rank}, in <module>\n    step()\n{message}\n'
        )
        (tmp_path / f"rank{rank}.log").write_text(f"step 10 loss 0.9\nstep 11 loss 0.8\n{raised}")
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert "bad shard" in run.diagnosis.summary
    assert [f.rank for f in run.findings if f.name == "crash" and f.severity == "error"] == [1]


def test_crash_tells_what_the_signature_knows(story, course):
    """The message, its line and the fixes of the catalogue."""
    event = Event(
        kind="cuda-oom",
        severity="error",
        message="CUDA out of memory. Tried to allocate 2 GiB",
        file="train.out",
        line=812,
        step=399,
        rank=3,
    )
    report = story(course(), event_list=[event], ended="out-of-memory")
    assert report.diagnosis.name == "crash: cuda-oom"
    assert "line 812 of train.out" in report.diagnosis.summary
    assert "postmortem explain cuda-oom" in report.diagnosis.next


def test_an_exception_that_no_signature_knows_is_advised_by_its_class(story, course):
    """General causes of exceptions are left to `explain`; the advice is for this one."""
    frame = 'Traceback (most recent call last):\n  File "train.py", line 4, in <module>\n    fit(depth=3)\n'
    text = frame + "TypeError: fit() got an unexpected keyword argument 'depth'\n"
    (event,) = find_events(enumerate(text.split("\n"), 1), path="train.out").events
    found = story(course(), event_list=[replace(event, step=399)], ended="crashed").diagnosis
    assert found.name == "crash: generic-exception"
    assert found.next[0] == event.fields["advice"][0]


def test_an_unrelated_crash_is_not_blamed_on_nan(story, course):
    """A missing file ended the run; the NaN before it is a separate finding."""
    report = story(course(**NAN_FROM_200), event_list=[MISSING], ended="crashed")
    assert next(f for f in report.findings if f.name == "crash").because_of is None


def test_what_a_message_usually_means_is_a_likely_cause(tmp_path: Path) -> None:
    """An input/output error proves no failure of the storage; out of memory is what the message itself states."""
    told = {}
    for message in ("OSError: [Errno 5] Input/output error: '/data/a.tar'", "RuntimeError: CUDA out of memory."):
        (tmp_path / "train.log").write_text(f"step 10 loss 0.9\nstep 11 loss 0.8\n{RAISED}{message}\n")
        [run] = postmortem.scan(tmp_path).runs
        assert run.diagnosis is not None
        told[run.diagnosis.name] = run.diagnosis
    assert told["crash: stale-handle"].strength == "likely"
    assert "Usual meaning of this message: The storage failed" in told["crash: stale-handle"].summary
    assert told["crash: cuda-oom"].strength == "certain"
    assert "Usual meaning" not in told["crash: cuda-oom"].summary


def test_the_last_logged_step_did_not_necessarily_fail(tmp_path: Path) -> None:
    """Step 11 was logged with a finite loss, and is the last good step: the failure came after it."""
    (tmp_path / "train.log").write_text(f"step 10 loss 0.9\nstep 11 loss 0.8\n{RAISED}AssertionError: bad order\n")
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert run.diagnosis.summary.startswith("The program failed after step 11, the last one logged: ")
    assert run.diagnosis.summary.endswith("AssertionError: bad order.")
    assert run.diagnosis.last_good_step == 11


def test_a_time_limit_is_no_failure_of_the_program(tmp_path: Path) -> None:
    """The scheduler ended the job: the program did not fail."""
    limit = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-11-20T14:31:10 DUE TO TIME LIMIT ***"
    (tmp_path / "slurm-8.out").write_text(f"step 10 loss 0.9\nstep 11 loss 0.8\n{limit}\n")
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert "The program was ended from outside" in run.diagnosis.summary
    assert "failed" not in run.diagnosis.summary


def test_an_image_that_cannot_be_decoded_is_not_missing_and_is_named_in_the_advice(tmp_path: Path) -> None:
    """The file exists, its content is at fault; whoever reads the advice need not search for it."""
    bad = "PIL.UnidentifiedImageError: cannot identify image file '/data/n01/img_8.JPEG'"
    for text in (WORKER.replace("ValueError: corrupt sample 900", bad), f"step 1 loss 0.9\n{RAISED}{bad}\n"):
        (tmp_path / "train.log").write_text(text)
        [run] = postmortem.scan(tmp_path).runs
        assert run.diagnosis is not None
        assert run.diagnosis.next[0] == "check /data/n01/img_8.JPEG: repair it or leave it out"
        assert not any(action.startswith("Find the ") for action in run.diagnosis.next)
        [event] = [e for e in run.events if e.severity == "error"]
        assert "sample-unreadable" in (event.kind, event.fields.get("cause_kind"))
        assert "missing" not in event.fields


def test_a_file_that_the_program_adds_to_the_message_is_named_and_a_known_line_is_not_searched(tmp_path: Path) -> None:
    """The library names no file, but the end of the message does; the innermost line is told under `for`."""
    bad = "OSError: image file is truncated (12 bytes not processed): /data/imgs/00002903.jpg"
    (tmp_path / "train.log").write_text(WORKER.replace("ValueError: corrupt sample 900", bad))
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert run.diagnosis.next[0] == "check /data/imgs/00002903.jpg: repair it or leave it out"
    assert any(line.startswith("raised at ") for line in run.diagnosis.evidence_for)
    assert not any("innermost frame" in action for action in run.diagnosis.next)
