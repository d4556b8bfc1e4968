"""The step, the words and the rank of a crash, where several sources or several exceptions tell of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import postmortem

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.report import RunReport

TRACEBACK = """Traceback (most recent call last):
  File "/home/u/train.py", line 51, in <module>
    main(step=5, loss=3.2)
  File "/home/u/train.py", line 27, in main
    return nn.Linear(50, 10)(x)
ValueError: Expected more than 1 value per channel when training
"""


def _steps(first: int, last: int, every: int = 1) -> str:
    return "".join(f"step {i}: loss {2.5 - 0.01 * i:.4f}\n" for i in range(first, last + 1, every))


def _report(folder: Path, **files: str) -> RunReport:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    (report,) = postmortem.scan(folder).runs
    return report


def test_code_in_a_traceback_is_no_metric(tmp_path: Path) -> None:
    """Neither the numbers in it nor its names; the failure is at the last step that the other file printed."""
    report = _report(tmp_path, train_out=_steps(0, 22), train_err=TRACEBACK)
    assert list(report.run.roles) == ["loss"]
    assert [(f.name, f.step) for f in report.findings] == [("crash", 22)]


def test_a_crash_is_at_the_last_step_of_the_source_that_logs_most_often(tmp_path: Path) -> None:
    """The program prints every tenth step; its table has each."""
    table = "step,loss\n" + "".join(f"{i},{2.5 - 0.01 * i:.4f}\n" for i in range(29))
    report = _report(tmp_path, train_out=_steps(0, 20, 10), train_err=TRACEBACK, metrics_csv=table)
    assert [(f.name, f.step) for f in report.findings] == [("crash", 28)]
    assert report.diagnosis is not None
    assert report.diagnosis.last_good_step == 28


def test_a_wrapper_is_not_the_headline(tmp_path: Path) -> None:
    """Hydra raises an exception of its own from the one that matters."""
    hydra = """
The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/u/train.py", line 72, in train
    model = hydra.utils.instantiate(cfg.model)
hydra.errors.InstantiationException: Error in call to target 'src.Net':
ValueError('Expected more than 1 value per channel when training')
"""
    report = _report(tmp_path, train_log=_steps(0, 9) + TRACEBACK + hydra)
    assert "ValueError: Expected more than 1 value" in report.findings[0].message
    assert "Instantiation" not in report.findings[0].message
    assert report.findings[0].evidence["exception"] == "ValueError"


def test_a_wrapper_alone_tells_what_it_wraps(tmp_path: Path) -> None:
    """Without HYDRA_FULL_ERROR there is no traceback: the words of the exception are in the message."""
    words = "Error executing job with overrides: []\nError in call to target 'src.Net':\nValueError('12 is odd')\n"
    report = _report(tmp_path, train_log=_steps(0, 9) + words)
    assert "ValueError('12 is odd')" in report.findings[0].message


def test_the_rank_that_failed_is_to_blame_not_those_that_waited_for_it(tmp_path: Path) -> None:
    """Its exception is printed after the time-out of another rank."""
    waited = (
        "[rank{0}]:[E1120 10:10:00.1 NCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600) ran for 659 milliseconds.\n"
    )
    steps = "".join(f"[rank{r}]: step {i} loss {2 - 0.01 * i:.3f}\n" for i in range(20) for r in range(3))
    error = "".join(
        f"[rank2]: {line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 51, in <module>',
            "    batch = next(it)",
            "OSError: [Errno 5] Input/output error: '/data/shard-00012.tar'",
        )
    )
    report = _report(tmp_path, train_log=steps + waited.format(1) + error + waited.format(0))
    assert [(f.name, f.rank) for f in report.findings] == [("crash", 2)]


def test_an_exception_of_an_earlier_start_with_another_date_is_none_of_the_last(tmp_path: Path) -> None:
    """A logger prefixes the first line of each start with its time."""
    log = ""
    for day in (1, 2, 3):
        log += f"2024-01-0{day} 10:00:00,000 INFO Starting training of net\n"
        log += TRACEBACK if day < 3 else _steps(0, 40) + "2024-01-03 10:10:00,000 INFO Best ckpt path: a.ckpt\n"
    report = _report(tmp_path, train_log=log)
    assert report.verdict == "healthy"
    assert report.ended == "completed"


def test_a_restart_after_a_crash_names_it(tmp_path: Path) -> None:
    """Both belong together."""
    report = _report(tmp_path, train_log=_steps(0, 30) + TRACEBACK + _steps(10, 500))
    (restart,) = [f for f in report.findings if f.name == "step-reset"]
    assert "ValueError: Expected more than 1 value" in restart.message


def test_a_stop_by_hand_is_no_silent_death(tmp_path: Path) -> None:
    """DeepSpeed's launcher reports the signal in words of its own."""
    steps = "".join(f"[Step {i}/100] Loss: {5 - 0.01 * i:.4f}\n" for i in range(13))
    stopped = "[2025-08-15 08:42:11,420] [INFO] [launch.py:328:sigkill_handler] Main process received SIGINT, exiting\n"
    report = _report(tmp_path, train_log=steps + stopped)
    assert (report.ended, report.verdict) == ("interrupted", "healthy")


def test_the_state_of_a_checkpoint_does_not_die(tmp_path: Path) -> None:
    """It shows how far the training was when it was saved."""
    rows = ",".join(f'{{"step": {i}, "loss": {9 - 0.01 * i}}}' for i in range(10, 200, 10))
    (tmp_path / "checkpoint-190").mkdir()
    state = f'{{"global_step": 190, "max_steps": 5000, "log_history": [{rows}]}}'
    (tmp_path / "checkpoint-190" / "trainer_state.json").write_text(state)
    (report,) = postmortem.scan(tmp_path).runs
    assert report.verdict == "healthy"


def test_threads_that_lose_their_queue_are_no_cause(tmp_path: Path) -> None:
    """The writer threads of a spawned process fail first in the log, because their parent closes the queue."""
    closed = """Exception in thread Thread-1:
Traceback (most recent call last):
  File "/usr/lib/python3.10/threading.py", line 1016, in _bootstrap_inner
    self.run()
  File "/usr/lib/python3.10/multiprocessing/connection.py", line 136, in _check_closed
    raise OSError("handle is closed")
OSError: handle is closed
"""
    report = _report(tmp_path, train_out=_steps(0, 22) + closed + closed.replace("Thread-1", "Thread-2") + TRACEBACK)
    found = [f for f in report.findings if f.name == "crash" and f.severity == "error"]
    assert [f.evidence["exception"] for f in found] == ["ValueError"]
    assert report.diagnosis is not None
    assert "Expected more than 1 value" in report.diagnosis.summary
