"""An error in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import postmortem
from postmortem.core.model import Event
from postmortem.core.reading import Reading
from postmortem.detectors.crash import Crash
from tests.detectors.cases import fires, quiet

if TYPE_CHECKING:
    from pathlib import Path

OUT_OF_MEMORY = Event(kind="cuda-oom", severity="error", message="CUDA out of memory", line=7, step=399)


@fires(Crash, step=399, event_list=[OUT_OF_MEMORY])
def an_exception_at_the_end(base):
    return base


@quiet(Crash, event_list=[OUT_OF_MEMORY], ended="completed")
def an_exception_that_the_run_survived(base):
    """Reported as a note: the program caught it."""
    return base


@fires(Crash, step=399, readings=[Reading(source="wandb", path="run-x.wandb", facts={"exit_code": 1})], ended="crashed")
def a_recorded_exit_code(base):
    """The log has no message, but W&B recorded that the program failed."""
    return base


@quiet(Crash, readings=[Reading(source="wandb", path="run-x.wandb", facts={"exit_code": 255})], ended="crashed")
def a_recorded_stop_by_hand(base):
    """W&B records 255 for a KeyboardInterrupt."""
    return base


def test_a_signal_from_outside_is_told(tmp_path: Path) -> None:
    """Of a run far from its end: where it stopped, and by what; nothing failed."""
    signal = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15\n"
    steps = "".join(f"Step {i}/10000: loss={2 / (i + 1):.5f}\n" for i in range(0, 300, 5))
    (tmp_path / "train.log").write_text(steps + signal)
    [run] = postmortem.scan(tmp_path).runs
    assert (run.verdict, run.ended) == ("healthy", "killed")
    [(severity, step, message)] = [(f.severity, f.step, f.message) for f in run.findings]
    assert (severity, step) == ("info", 295)
    assert "at step 295 of 10000" in message
    assert "got signal: 15" in message
    rank = "E1120 12:00:00.5 71 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) "
    rank += "local_rank: 3 (pid: 72) of binary: /usr/bin/python\n"
    (tmp_path / "train.log").write_text(steps + rank + signal)
    assert postmortem.scan(tmp_path).runs[0].verdict == "failed"


def test_a_cancelled_job_is_information(tmp_path: Path) -> None:
    """Somebody stopped the job: nothing is wrong, but a person wants to know it, with the line."""
    steps = "".join(f"Step {i}/10000: loss={2 / (i + 1):.5f}\n" for i in range(0, 300, 5))
    (tmp_path / "train.log").write_text(
        steps + "slurmstepd: error: *** JOB 77 ON n3 CANCELLED AT 2025-08-21T02:53:05 ***\n"
    )
    [run] = postmortem.scan(tmp_path).runs
    [found] = [f for f in run.findings if f.name == "crash"]
    assert (run.verdict, run.ended, found.severity) == ("healthy", "interrupted", "info")
    assert found.message.startswith("the job was cancelled at step 295 of 10000: slurmstepd")
    assert found.evidence["line"] == 61


def test_a_signal_is_quoted_without_the_bar_before_it(tmp_path: Path) -> None:
    """The message of a signal may stand behind the last state of a bar, in the same line."""
    bar = "Epoch 0:  31%|###   | 25/80 [00:07<00:35, 3.31s/it, loss=1.110]"
    rows = "".join(f"Epoch 0:  {n}%|#    | {n}/80 [00:07<00:35, 3.31s/it, loss={2 - n / 40:.3f}]\r" for n in range(25))
    (tmp_path / "train.log").write_text(f"{rows}{bar}[rank: 2] Received SIGTERM: 15\n")
    [run] = postmortem.scan(tmp_path).runs
    [message] = [f.message for f in run.findings if f.name == "crash"]
    assert message.endswith("[rank: 2] Received SIGTERM: 15")
    assert "it/s" not in message
    assert "s/it" not in message


def test_attempts_that_failed_where_nothing_was_trained(tmp_path: Path) -> None:
    """Each job was started again in one file after an exception, and the last ones were cancelled."""
    table = "+------------------------ GPU 0 is idle -----------------------+\n"
    failure = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 5, in <module>\n    main()\n{}\n'
    bar = "  0%|          | {n}/100005 [00:{n:02d}<?, ?it/s]\n"
    jobs = [failure.format("ValueError: Unknown split 'val'"), failure.format("IndexError: arrays used as indices")]
    ends = "slurmstepd: error: *** JOB 26{} ON dgx-06 CANCELLED AT 2025-08-21T02:53:05 ***\n"
    jobs += ["".join(bar.format(n=n) for n in range(40)) + ends.format(n) for n in (1, 2)]
    log = "".join(f"Thu Aug 21 01:{30 + i}:46 2025\n{table}{job}" for i, job in enumerate(jobs))
    (tmp_path / "slurm.out").write_text(log)
    [run] = postmortem.scan(tmp_path).runs
    [found] = [f for f in run.findings if f.name == "crash"]
    assert (run.verdict, found.severity) == ("suspect", "warning")
    assert found.message.startswith("2 attempts failed")
    assert "IndexError" in found.message
    steps = "".join(f"step {i} loss {2 - i / 40:.4f}\n" for i in range(40))
    (tmp_path / "slurm.out").write_text(log + f"Thu Aug 21 01:50:46 2025\n{table}{steps}")
    [run] = postmortem.scan(tmp_path).runs
    assert "crash" not in {f.name for f in run.findings if f.severity != "info"}


def test_an_exception_of_a_program_that_trains_nothing_and_goes_on(tmp_path: Path) -> None:
    """A tracker's own log, or a server's: it logged the exception of a part of it and went on. In a log with a loss, or
    as the last word, it is a crash."""
    stack = 'Traceback (most recent call last):\n  File "/lib/system_info.py", line 214, in _save\n    call()\n'
    error = "2026-04-27 03:48:12,936 ERROR Thread:1 [info.py:221] Error\n" + stack + "FileNotFoundError: no 'conda'\n"
    others = [f"2026-04-27 03:48:{n},110 DEBUG Thread:1 [sender.py:{n}] send: stats\n" for n in range(13, 43)]
    losses = "".join(f"step {n} loss {2 / n:.4f}\n" for n in range(1, 20))
    for text, verdict in ((error + "".join(others), "not-judged"), ("".join(others) + error, "failed")):
        (tmp_path / "debug-internal.log").write_text(text)
        assert postmortem.scan(tmp_path).runs[0].verdict == verdict
    (tmp_path / "debug-internal.log").write_text(losses + error + "".join(others))
    assert postmortem.scan(tmp_path).runs[0].verdict == "failed"
