"""What stands around a traceback, and what a last line of the script around says of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import postmortem
from postmortem.readers.text import TextReader
from postmortem.readers.text.failures import EventReading, find_events

Scan = Callable[[str], EventReading]
UNCAUGHT = """Traceback (most recent call last):
  File "/home/me/train.py", line 88, in <module>
    main()
ValueError: negative count at 17
"""
CAUGHT = UNCAUGHT.replace("<module>", "draw_samples")
STEPS = "".join(f"step {n} loss {3 / n:.4f}\n" for n in range(1, 60))


@pytest.fixture
def scan() -> Scan:
    """Reads a log given as text."""

    def read(text: str) -> EventReading:
        return find_events(enumerate(text.split("\n"), 1), path="train.out", unterminated=not text.endswith("\n"))

    return read


@pytest.mark.parametrize(
    "end",
    ["Job finished at Fri Nov 20 12:00:00 UTC 2026", "Training finished", "Exit code: 0", "Run completed in 12:03"],
)
def test_a_script_that_ends_does_not_mend_a_crash(scan: Scan, end: str) -> None:
    """A stack that begins at <module> was caught by nobody: "finished" behind it is said by the script around."""
    reading = scan(STEPS + UNCAUGHT + end + "\n")
    assert reading.ended == "crashed"
    assert reading.events[0].severity == "error"


@pytest.mark.parametrize("end", ["Training finished", "All workflows completed successfully."])
def test_a_caught_exception_before_the_end_is_a_note(scan: Scan, end: str) -> None:
    """What a function caught and printed did not end the training."""
    reading = scan(STEPS + CAUGHT + end + "\n")
    assert reading.ended == "completed"
    assert reading.events[0].severity == "info"


@pytest.mark.parametrize("words", ["; retrying in 5 s", ", skipping this sample", "; will try again"])
def test_an_exception_that_says_how_it_goes_on_ended_nothing(scan: Scan, words: str) -> None:
    """A short log may show too little training after it; but an exception that nothing caught cannot go on."""
    line = f"ConnectionError: 503 from the store{words}\n"
    assert scan(line + STEPS[:400]).events[0].severity == "warning"
    assert scan(STEPS + UNCAUGHT.replace("ValueError: negative count at 17\n", line)).ended == "crashed"


def test_training_after_an_uncaught_exception_counts(scan: Scan) -> None:
    """The next program of the same job trained and completed."""
    reading = scan(STEPS + UNCAUGHT + STEPS + "Training finished\n")
    assert reading.ended == "completed"


THREAD = """Exception in thread Thread-8:
Traceback (most recent call last):
  File "/usr/lib/python3.8/threading.py", line 932, in _bootstrap_inner
    self.run()
  File "/home/me/loader.py", line 21, in fetch
    raise ValueError("the device is gone")
ValueError: the device is gone
"""


@pytest.mark.parametrize(
    "end",
    ["INFO: End of training.", "2023-05-24 INFO: End of training. Time consumed: 3:20:11", "Optimization Finished!"],
)
def test_a_thread_that_fails_after_the_end_is_a_note(scan: Scan, end: str) -> None:
    """What a loader's thread prints while the program exits takes nothing from a complete training; before the end
    nobody knows whether the program waited for it, and the exception of the program itself is a crash."""
    reading = scan(STEPS + f"{end}\n" + THREAD)
    assert (reading.ended, [e.severity for e in reading.events]) == ("completed", ["info"])
    assert scan(STEPS + THREAD).ended == "crashed"
    assert scan(STEPS + f"{end}\n" + UNCAUGHT).ended == "crashed"


def test_a_killed_process_did_not_finish_its_job(scan: Scan) -> None:
    reading = scan(
        STEPS + "/var/spool/slurm_script: line 12: 12345 Killed                  python train.py\nJob finished\n"
    )
    assert reading.ended == "killed"


@pytest.mark.parametrize("lead", ["gpu-12 says | ", "(step 3) task=7 >> ", "<trainer-2> "])
def test_a_lead_that_nobody_knows_is_taken_off(scan: Scan, lead: str) -> None:
    """What stands in front of a header stands in front of the rest, up to its digits."""
    text = "".join(f"{lead.replace('7', str(n))}{line}\n" for n, line in enumerate(UNCAUGHT.splitlines()))
    (event,) = scan(STEPS + text).events
    assert event.fields["exception"] == "ValueError"
    assert event.fields["frame"]["line"] == 88
    assert event.line == 63


def test_the_launcher_says_whose_output_follows(scan: Scan) -> None:
    """Composer prints what a rank wrote between two rules."""
    (event,) = scan(
        STEPS + "-----Begin global rank 4 STDERR-----\n" + UNCAUGHT + "-----End global rank 4 STDERR-----\n"
    ).events
    assert event.rank == 4


@pytest.mark.parametrize(("code", "ended"), [(0, "completed"), (1, "crashed")])
def test_kaldi_says_how_a_job_ended(scan: Scan, code: int, ended: str) -> None:
    """The last line of a job's log holds its code."""
    assert (
        scan(
            f"{STEPS}# Accounting: time=40 threads=1\n# Ended (code {code}) at Fri Nov 20 22:14:37 UTC 2026, elapsed "
            "time 40 seconds\n"
        ).ended
        == ended
    )


def test_the_reason_for_a_signal_comes_after_it(scan: Scan) -> None:
    """A SIGTERM that the scheduler explains afterwards is the scheduler's doing."""
    text = (
        "[rank: 0] Received SIGTERM: 15\nslurmstepd: error: *** STEP 2341.0 ON n12 CANCELLED AT "
        "2026-11-20T14:02:11 DUE TO PREEMPTION ***\n"
    )
    assert scan(STEPS + text).ended == "preempted"


def test_a_message_of_tensorflow_names_the_failure_in_a_later_paragraph(scan: Scan) -> None:
    """The graph that failed is shown with frames of its own, which start no other traceback."""
    text = """Traceback (most recent call last):
  File "/home/me/train.py", line 8, in <module>
    model.fit(data)
tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:

Detected at node 'loss' defined at (most recent call last):
    File "/home/me/train.py", line 8, in <module>
      model.fit(data)
Node: 'loss'
Received a label value of 4 which is outside the valid range of [0, 4).  Label values: 3 4 1
\t [[{{node loss}}]] [Op:__inference_train_function_24]
"""
    (event,) = scan(STEPS + text).events
    assert (event.kind, event.line) == ("label-oob-cpu", 63)
    assert event.fields["target"] == 4


def test_the_exception_of_a_rank_inside_a_checkpoint_error(scan: Scan) -> None:
    """What failed on the rank is the cause, inside of what the others raise."""
    text = """Traceback (most recent call last):
  File "/home/me/train.py", line 8, in <module>
    save(state)
torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3])
Traceback (most recent call last): (RANK 3)
  File "/home/me/store.py", line 12, in write
    file.write(data)
OSError: [Errno 28] No space left on device
"""
    (event,) = scan(STEPS + text).events
    assert (event.kind, event.fields["cause_kind"], event.fields["failed_ranks"]) == (
        "ckpt-distributed",
        "disk-full",
        [3],
    )
    assert event.fields["frame"]["file"] == "/home/me/store.py"


def _course(*steps: range) -> list[str]:
    return [f"step {s} | loss {3.0 - s / 1000:.4f} | lr 1.0e-4" for span in steps for s in span]


_PREEMPTED = "slurmstepd: error: *** JOB 4242 ON node001 CANCELLED AT 2026-01-05T03:12:44 DUE TO PREEMPTION ***"


def test_steps_that_go_back_and_on_are_a_new_start(tmp_path: Path) -> None:
    """A job that was preempted, did its last steps again and completed has completed, however short its log is."""
    log = tmp_path / "train.out"
    log.write_text(
        "\n".join([*_course(range(0, 400, 5)), _PREEMPTED, *_course(range(350, 700, 5)), "Training finished."]) + "\n"
    )
    reading = TextReader.read(log)
    assert reading.ended == "completed"
    assert [(e.kind, e.severity) for e in reading.events] == [("slurm-preempted", "info")]


@pytest.mark.parametrize("rest", [range(380, 405, 5), range(395, 420, 5), range(350, 390, 5)])
def test_a_few_steps_behind_the_end_are_no_new_start(tmp_path: Path, rest: range) -> None:
    """What buffers still held when the job was cancelled, of the last steps or some before them, is no training that
    went on."""
    log = tmp_path / "train.out"
    log.write_text("\n".join([*_course(range(0, 400, 5)), _PREEMPTED, *_course(rest)]) + "\n")
    assert TextReader.read(log).ended == "preempted"


@pytest.mark.parametrize(
    ("said", "ranks", "ended"),
    [
        ("task 0: Killed", [0], "killed"),
        ("task 3: Out Of Memory", [3], "out-of-memory"),
        ("tasks 0-3,5: Exited with exit code 1", [0, 1, 2, 3, 5], "crashed"),
        ("task 1: Exited with exit code 137", [1], "killed"),
        ("tasks 2,4: Terminated", [2, 4], "killed"),
        ("task 12: Segmentation fault (core dumped)", [12], "crashed"),
        ("task 6: Floating point exception", [6], "crashed"),
        ("tasks 0-99999999999: Killed", [], "killed"),
    ],
)
def test_srun_names_ranks_by_their_tasks(scan: Scan, said: str, ranks: list[int], ended: str) -> None:
    """The task is the rank of whoever printed nothing itself; of a list each of them, the first in front; of no
    possible list none."""
    reading = scan(STEPS + f"srun: error: node001: {said}\n")
    (event,) = reading.events
    assert (event.rank, event.fields.get("ranks", ranks)) == (ranks[0] if ranks else None, ranks)
    assert reading.ended == ended


def test_the_rank_that_ran_out_of_memory_is_that_of_the_task(scan: Scan) -> None:
    """slurmstepd does not say who was killed, srun does."""
    text = "slurmstepd: error: Detected 1 oom_kill event in StepId=55.0. Some of the step tasks have been OOM Killed.\n"
    reading = scan(
        STEPS + text + "srun: error: node001: task 3: Out Of Memory\nsrun: error: node001: tasks 0-2: Terminated\n"
    )
    assert [(e.kind, e.rank, e.severity) for e in reading.events] == [
        ("slurm-oom-kill", 3, "error"),
        ("srun-exit", 3, "info"),
        ("srun-exit", 0, "info"),
    ]


def test_a_task_that_starts_ranks_of_its_own_is_none(scan: Scan) -> None:
    """Under srun with a launcher in each task, the task is the number of a node."""
    text = "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.\n"
    reading = scan(STEPS + text + "srun: error: node002: task 1: Exited with exit code 1\n")
    assert [e.rank for e in reading.events] == [None, None]


_STEP_ENDED = "slurmstepd: error: *** STEP 77.0 ON node001 CANCELLED AT 2026-01-05T03:12:44 ***\n"
_STOPPED = "srun: error: node001: tasks 0-2: Terminated\n"


def test_a_step_that_is_ended_after_a_task_failed_was_stopped_by_nobody(scan: Scan) -> None:
    """What srun reported before is the cause; a task that ends behind it, as at scancel, is not."""
    failed = "srun: error: node001: task 3: Exited with exit code 1\n"
    before, after = scan(STEPS + failed + _STEP_ENDED + _STOPPED), scan(STEPS + _STEP_ENDED + _STOPPED + failed)
    assert (before.ended, before.events[0].severity, before.events[0].rank) == ("crashed", "error", 3)
    assert [e.severity for e in before.events[1:]] == ["info", "info"]
    assert (after.ended, {e.severity for e in after.events}) == ("interrupted", {"info"})


FAULT = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 88, in <module>\n    main()\n'


@pytest.mark.parametrize(("xid", "lost"), [(79, "info"), (48, "info"), (13, "error"), (31, "error")])
def test_a_gpu_that_broke_fails_every_call_behind_it(scan: Scan, xid: int, lost: str) -> None:
    """Of what the driver says about the hardware the exception is a consequence; of what it says of the program it
    tells more."""
    driver = f"[1234.5] NVRM: Xid (PCI:0000:3b:00): {xid}, pid=4711, name=python\n"
    reading = scan(
        STEPS + driver + FAULT + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    )
    assert [(e.kind, e.severity) for e in reading.events] == [("xid", "error"), ("illegal-access", lost)]
    assert ("victim_of" in reading.events[1].fields) == (lost == "info")


def test_an_abort_is_the_end_of_a_chain(scan: Scan) -> None:
    """faulthandler reports the abort that follows a fault of the GPU; alone it is all there is."""
    abort = (
        'Fatal Python error: Aborted\n\nThread 0x00007f8a (most recent call first):\n  File "/home/me/train.py", '
        "line 88 in main\n"
    )
    fault = "Memory access fault by GPU node-6 (Agent handle: 0x55ab) on address 0x7f21. Reason: Unknown.\n"
    reading = scan(STEPS + fault + abort)
    assert [(e.kind, e.severity) for e in reading.events] == [("illegal-access", "error"), ("segv", "info")]
    alone = scan(STEPS + abort)
    assert alone.ended == "crashed"
    assert alone.events[0].severity == "error"
    assert alone.events[0].fields["frame"]["line"] == 88


def test_ctrl_c_that_python_ignored_interrupted_nothing(scan: Scan) -> None:
    """Somebody grew impatient with a program whose training was complete."""
    ignored = "Exception ignored in atexit callback: <function leave at 0x7f>\n" + FAULT + "KeyboardInterrupt\n"
    assert scan(STEPS + "Training completed.\n" + ignored).ended == "completed"
    assert scan(STEPS + "Training completed.\n" + FAULT + "KeyboardInterrupt\n").ended == "interrupted"


def test_slurm_counts_its_restarts(scan: Scan) -> None:
    """Behind the number of a restart runs a new process, however few steps it does."""
    preempted = "slurmstepd: error: *** JOB 4711 ON node007 CANCELLED AT 2026-11-20T12:45:36 DUE TO PREEMPTION ***\n"
    again = STEPS + preempted + "SLURM_RESTART_COUNT=1\n" + STEPS[: STEPS.index("step 9 ")]
    reading = scan(again + "Training completed.\n")
    assert reading.ended == "completed"
    assert not [e for e in reading.events if e.severity == "error"]
    assert scan(STEPS + preempted).ended == "preempted"


def test_a_line_below_an_exception_that_only_notes_something_does_not_name_it(scan: Scan) -> None:
    """The next start of the job writes right below the message of the exception."""
    assert scan(STEPS + UNCAUGHT + "SLURM_RESTART_COUNT=1\n").events[0].kind == "generic-exception"


def test_a_dump_of_the_watchdog_says_where_it_hangs(scan: Scan) -> None:
    """faulthandler.dump_traceback_later: the run hung, unless it trained on."""
    dump = (
        'Timeout (0:10:00)!\nThread 0x00007f12 (most recent call first):\n  File "/home/me/data.py", line 44 in fetch\n'
    )
    reading = scan(STEPS + dump)
    assert reading.ended == "hung"
    assert reading.events[0].fields["frame"] == {
        "file": "/home/me/data.py",
        "line": 44,
        "function": "fetch",
        "code": "",
    }
    assert scan(STEPS + dump + STEPS * 20).events[0].severity == "info"


def test_kubernetes_says_why_it_stopped_the_program(scan: Scan) -> None:
    """SIGTERM comes first, the reason of it in the next line."""
    why = "The node was low on resource: ephemeral-storage. Container main was using 41Gi.\n"
    reading = scan(STEPS + "Received signal 15, shutting down\n" + why)
    assert reading.ended == "killed"
    assert [(e.kind, e.severity) for e in reading.events] == [("sigterm", "info"), ("pod-evicted", "error")]


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/home/me/rollout.py", line 61, in main
  |     async with asyncio.TaskGroup() as tasks:
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
"""
HELD = """  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/rollout.py", line 40, in score
    |     r = await ask(x)
    | ValueError: 3 scores for 4 completions
    +------------------------------------
"""


def test_what_an_exception_group_holds_is_to_blame(scan: Scan) -> None:
    """The group only says that a task failed; where its contents are lost it is all there is."""
    group, held = scan(STEPS + GROUP + HELD).events
    assert (group.severity, group.fields["victim_of"]["line"]) == ("info", held.line)
    assert (held.severity, held.fields["exception"], held.fields["frame"]["line"]) == ("error", "ValueError", 40)
    assert scan(STEPS + GROUP).events[0].severity == "error"


def test_a_line_with_an_epoch_alone_does_not_outlast_the_next_epoch(tmp_path: Path) -> None:
    """A message such as "Epoch 0" at the start is not the epoch of the evaluation after the last one."""
    lines = ["epochs=8", "Epoch: 0"]
    for epoch in range(8):
        lines += [
            f"Epoch: [{epoch}][{i}/50]\tTime 0.1 (0.1)\tLoss {3 - 0.05 * epoch:.4f} (3.0000)" for i in range(0, 50, 10)
        ]
        lines += [f"Prec@1 {50 + epoch}.0 ({50 + epoch}.0)"] * 3
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    (report,) = postmortem.scan(tmp_path).runs
    assert report.verdict == "healthy"


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        ("caught SIGTERM, saving checkpoint to last.pt", "killed"),
        ("Received signal 15, exiting gracefully", "killed"),
        ("Signal handler called with signal 15", "killed"),
        ("Caught signal 2 (SIGINT); stopping after this step", "interrupted"),
        ("received interrupt, saving checkpoint", "interrupted"),
        ("Training interrupted by the user at step 300", "interrupted"),
        ("^C received, stopping", "interrupted"),
        ("Exiting from training early", "interrupted"),
        ("Press Ctrl+C to stop training", None),
        ("Keyboard interrupt will save the model", None),
        ("Registered SIGTERM handler", None),
    ],
)
def test_how_a_program_says_that_it_was_stopped(scan: Scan, last: str, ended: str | None) -> None:
    """In its own words, without a traceback; how to stop it is no end."""
    assert scan(STEPS + last + "\n").ended == ended


def test_a_signal_that_a_program_survived_is_no_end(scan: Scan) -> None:
    assert scan(STEPS + "caught SIGTERM, saving checkpoint\n" + STEPS * 8 + "Training finished\n").ended == "completed"


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        ("EarlyStopping: dev_loss did not improve for 4 epochs. Restoring best weights from epoch 9", "completed"),
        ("Early stopping: loaded the best model, of epoch 7", "completed"),
        ("EarlyStopping: Stop training", "completed"),
        ("Stopped early after 31 epochs (patience 5)", "completed"),
        ("stopping_early: wallclock_cap train_time:600038ms step:13780/20000", "completed"),
        ("No improvement for 10 epochs, stopping training.", "completed"),
        ("Ran out of patience. Stopping training.", "completed"),
        ("Restoring model weights from the end of the best epoch: 11.", "completed"),
        ("[pretrain] early stop after 28 epochs (no improvement for 6)", "completed"),
        ("Early stop at epoch 28", "completed"),
        ("early stop after 10 epochs, min_delta 0.01", None),
        ("EarlyStopping counter: 3 out of 5", None),
        ("EarlyStopping counter: 5 out of 5", "completed"),
        ("EarlyStopping counter: 9 out of 8", "completed"),
        ("No improvement for 3 epochs, stopping in 2", None),
        ("patience 3/10 before early stopping", None),
        ("early stopping patience=5 restore best weights: True", None),
        ("Will stop training if no improvement for 5 epochs", None),
    ],
)
def test_how_a_program_says_that_its_patience_is_used_up(scan: Scan, last: str, ended: str | None) -> None:
    """A count of the patience is no end."""
    assert scan(STEPS + last + "\n").ended == ended


@pytest.mark.parametrize(
    "last",
    [
        "run.sh: line 12: 21345 Terminated              python train.py --cfg a.yaml",
        "Terminated",
        "/var/spool/slurmd/job7/slurm_script: line 9: 4711 Hangup                  python train.py",
        "run.sh: line 3: 4711 User defined signal 1   python train.py",
    ],
)
def test_the_last_words_of_the_shell_are_the_reason(tmp_path: Path, last: str) -> None:
    """What a shell prints about a program that a signal ended is how the run ended: not an end without a reason."""
    (tmp_path / "train.log").write_text("\n".join([*_course(range(0, 400, 5)), last]) + "\n")
    [run] = postmortem.scan(tmp_path).runs
    assert run.ended == "killed"
    assert [f.name for f in run.findings] == ["crash"]
    assert last.split()[-1] in run.findings[0].message


def test_a_signal_in_a_word_of_the_program_is_no_end(tmp_path: Path) -> None:
    """ "Terminated" within a sentence, or before further steps, is not the end of the run."""
    for words in ("Terminated actors: 3", "Terminated"):
        rows = [*_course(range(0, 400, 5)), words, *_course(range(400, 9000, 5))]
        (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
        assert TextReader.read(tmp_path / "train.log").ended is None


def test_a_failed_node_is_the_reason_and_its_advice_is_about_the_node(tmp_path: Path) -> None:
    """The reason that Slurm prints chooses the cause, its strength and its advice."""
    why = "slurmstepd: error: *** JOB 9 ON n17 CANCELLED AT 2026-11-20T03:12:44 DUE TO {} ***\n"
    course = "\n".join(_course(range(0, 400, 5))) + "\n"
    told = {}
    for reason in ("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "PREEMPTION"):
        (tmp_path / "train.log").write_text(course + why.format(reason))
        [run] = postmortem.scan(tmp_path).runs
        assert run.diagnosis is not None
        told[reason.split(",")[0]] = (run.diagnosis.name, run.diagnosis.strength, " ".join(run.diagnosis.next))
    assert told["NODE FAILURE"][:2] == ("crash: slurm-node-failure", "certain")
    assert "--exclude" in told["NODE FAILURE"][2]
    assert "requeue" not in told["NODE FAILURE"][2]
    assert told["PREEMPTION"][:2] == ("crash: slurm-preempted", "certain")
    assert "--requeue" in told["PREEMPTION"][2]


def test_a_bare_abort_is_not_a_certain_exception_of_cpp(tmp_path: Path) -> None:
    """SIGABRT has several reasons; only "terminate called" proves an uncaught C++ exception."""
    course = "\n".join(_course(range(0, 400, 5))) + "\n"
    (tmp_path / "train.log").write_text(
        course + "run.sh: line 12: 4711 Aborted                 (core dumped) python t.py\n"
    )
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert (run.diagnosis.name, run.diagnosis.strength) == ("crash: process-aborted", "likely")
    assert "what()" not in " ".join(run.diagnosis.next)
    (tmp_path / "train.log").write_text(
        course + "terminate called after throwing an instance of 'c10::Error'\n  what():  boom\nAborted (core dumped)\n"
    )
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert run.diagnosis.name == "crash: exit-watchdog"


def test_the_last_traceback_of_a_shutdown_by_hand(scan: Scan) -> None:
    """Ctrl-C, pressed again while the program ends, leaves a traceback without its last line: no crash."""
    stopped = UNCAUGHT.replace("ValueError: negative count at 17", "KeyboardInterrupt")
    cut = 'Exception ignored in atexit callback: <function shutdown at 0x7f>\nTraceback (most recent call last):\n  File "/usr/lib/python3.10/logging/__init__.py", line 912, in acquire\n    def acquire(self):\n'  # noqa: E501
    reading = scan(STEPS + stopped + cut)
    assert reading.ended == "interrupted"
    assert {event.severity for event in reading.events} == {"info"}
    assert scan(STEPS + cut.partition("\n")[2]).ended == "cut"


def test_a_heartbeat_that_was_missed_once(scan: Scan) -> None:
    """torchrun warns of it and tries again: no crash, nor is a line of source that would print a message."""
    missed = "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'c3_776435_0' has failed to send a keep-alive heartbeat to the rendezvous '3062713' due to an error of type RendezvousTimeoutError.\n"  # noqa: E501
    source = '            logging.warning(f"NaN loss at epoch {epoch + 1}, batch {i}. Skipping batch.")\n'
    reading = scan(STEPS + missed + source + "step 60 loss 0.05\n")
    assert reading.ended is None
    assert [(event.kind, event.severity) for event in reading.events] == [("rendezvous-heartbeat", "warning")]


@pytest.mark.parametrize(("how", "ended"), [("success", "completed"), ("failed 1", None)])
def test_how_the_program_ended_as_a_tracker_knows(scan: Scan, how: str, ended: str | None) -> None:
    """W&B prints at the exit of a program whether an exception ended it."""
    footer = "wandb: Run summary:\nwandb: train_loss 0.02829\nwandb: Synced 5 W&B file(s)\n"
    reading = scan(STEPS + f"wandb: Waiting for W&B process to finish... ({how}).\n" + footer)
    assert reading.ended == ended


@pytest.mark.parametrize(
    ("file", "own", "severity"),
    [
        ("/lib/site-packages/tornado/web.py", "/lib/site-packages/jupyter_server/services/handlers.py", "info"),
        ("/lib/site-packages/uvicorn/protocols/http.py", "/home/me/train.py", "error"),
        ("/home/me/serve.py", "/lib/site-packages/jupyter_server/services/handlers.py", "error"),
    ],
)
def test_an_exception_of_a_request_does_not_end_the_server(scan: Scan, file: str, own: str, severity: str) -> None:
    """A web server answers with an error and goes on: a notebook in which a model is trained logs such ones. A request
    that runs the user's own code may be the training."""
    request = f"""[E 2026-03-05 10:05:01.124 ServerApp] Uncaught exception GET /api/contents/x.ipynb (127.0.0.1)
    Traceback (most recent call last):
      File "{file}", line 1702, in _execute
        result = await result
      File "{own}", line 99, in get
        model = await ensure_async(cm.get(path=path))
    OSError: [Errno 5] Input/output error: '/home/u/x.ipynb'
"""
    reading = scan(STEPS + request)
    assert [event.severity for event in reading.events if event.fields.get("exception")] == [severity]
    assert (reading.ended == "crashed") == (severity == "error")
