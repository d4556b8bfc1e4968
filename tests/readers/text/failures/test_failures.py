"""Known failures over several lines and ranks, who is to blame, and how a run ended."""

from collections.abc import Callable

import pytest

from postmortem.core.model import Event
from postmortem.readers.text.failures import EventReading, find_events
from postmortem.readers.text.failures.enrich import memory_format

Scan = Callable[[str], EventReading]


@pytest.fixture
def scan() -> Scan:
    """Reads a log given as text."""

    def read(text: str) -> EventReading:
        return find_events(enumerate(text.split("\n"), 1), path="train.out", unterminated=not text.endswith("\n"))

    return read


def kinds(reading: EventReading) -> dict[str, str]:
    return {e.kind: e.severity for e in reading.events}


def one(reading: EventReading, kind: str) -> Event:
    (event,) = [e for e in reading.events if e.kind == kind]
    return event


def steps(n: int, prefix: str = "") -> str:
    return "".join(f"{prefix}step {i} loss {2 / (i + 1):.4f}\n" for i in range(n))


def failed(message: str, rank: int | None = None) -> str:
    before = "" if rank is None else f"[rank{rank}]: "
    lines = (
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 8, in <module>',
        "    step()",
        message,
    )
    return "".join(f"{before}{line}\n" for line in lines)


def row(index: int, rank: int, exitcode: int) -> str:
    lines = (
        f"[{index}]:",
        "  time      : 2026-11-20_20:31:41",
        "  host      : n1",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {exitcode} (pid: {900 + rank})",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    )
    return "".join(f"{line}\n" for line in lines)


def table(root: int, exitcode: int, others: dict[int, int]) -> str:
    rule, line = "=" * 60, "-" * 60
    rows = "".join(row(i, rank, code) for i, (rank, code) in enumerate(others.items(), 1)) or "  <NO_OTHER_FAILURES>\n"
    head = (
        'Traceback (most recent call last):\n  File "/opt/conda/bin/torchrun", line 6, in <module>\n    '
        "sys.exit(main())\n"
    )
    title = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    failures = f"{title}\n{rule}\ntrain.py FAILED\n{line}\nFailures:\n{rows}{line}\n"
    return f"{head}{failures}Root Cause (first observed failure):\n{row(0, root, exitcode)}{rule}\n"


CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[10.0.0.1]:58091"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU {} has a total capacity of 79.10 GiB "
    "of which 1.00 GiB is free."
)


def test_the_rank_with_an_error_of_its_own_is_the_first(scan: Scan) -> None:
    """A closed connection printed before the cause is a victim of it, and so is the launcher's table."""
    reading = scan(steps(5) + failed(CLOSED, 0) + failed("ValueError: bad sample", 1) + table(0, 1, {1: 1}))
    assert kinds(reading) == {"gloo-closed": "info", "generic-exception": "error", "elastic-child-failed": "info"}
    assert one(reading, "gloo-closed").fields["victim_of"] == {"kind": "generic-exception", "line": 13, "rank": 1}
    assert one(reading, "elastic-child-failed").fields["root_rank"] == 0
    assert reading.ended == "crashed"


def test_a_killed_rank_is_known_from_the_table_alone(scan: Scan) -> None:
    """Exit code -9 leaves no other trace; the closed connections of the others are its consequence."""
    reading = scan(steps(5) + failed(CLOSED, 0) + table(1, -9, {0: -15}))
    kill = one(reading, "host-kill")
    assert (kill.severity, kill.rank) == ("error", 1)
    assert one(reading, "gloo-closed").severity == "info"
    assert reading.ended == "killed"
    rows = one(reading, "elastic-child-failed").fields["failures"]
    assert {row["rank"]: row["exitcode"] for row in rows} == {0: -15, 1: -9}


def test_the_kill_that_the_agent_reports_gets_its_rank_from_the_table(scan: Scan) -> None:
    """One kill, not two: the agent's line and the table name the same process."""
    agent = (
        "E1120 20:31:41.428000 323 torch/distributed/elastic/multiprocessing/api.py:1002]"
        " failed (exitcode: -9) local_rank: 1 (pid: 901) of binary: python\n"
    )
    kill = one(scan(steps(5) + agent + table(1, -9, {0: -15})), "host-kill")
    assert (kill.rank, kill.line, kill.fields["pid"]) == (1, 6, 901)


def test_the_same_failure_on_all_ranks_is_one_event(scan: Scan) -> None:
    """Eight ranks out of memory: one event, first rank, all ranks, sizes as ints."""
    reading = scan(
        steps(3) + "".join(failed(OOM.format(n, r), r) for n, r in ((2, 5), (3, 0), (2, 1))) + table(1, 1, {})
    )
    event = one(reading, "cuda-oom")
    assert (event.rank, event.fields["ranks"], event.fields["count"]) == (5, [0, 1, 5], 3)
    assert event.fields["requested_bytes"] == 2 << 30
    assert reading.ended == "out-of-memory"


def test_missing_ranks_of_a_timeout_are_suspects(scan: Scan) -> None:
    """Who prints the timeout has waited; who does not is suspected."""
    work = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=1024,"
        " NumelOut=1024, Timeout(ms)=600000) ran for 600031 milliseconds before timing out."
    )
    text = (
        "world_size: 4\n"
        + steps(3)
        + "".join(
            f"[rank{r}]:[E1120 12:31:25.416425540 ProcessGroupNCCL.cpp:632] [Rank {r}] {work}\n" for r in (0, 1, 3)
        )
    )
    event = one(scan(text), "nccl-timeout")
    assert event.fields["ranks"] == [0, 1, 3]
    assert event.fields["suspects"] == [2]
    assert (event.fields["op"], event.fields["timeout_ms"], event.fields["numel_in"]) == ("ALLREDUCE", 600000, 1024)
    assert scan(text).ended == "hung"


def test_ranks_in_different_collectives_are_out_of_step(scan: Scan) -> None:
    """The same sequence number in two operations is a derived event."""
    line = (
        "[rank{0}]:[E1120 12:31:25.416 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=17,"
        " OpType={1}, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.\n"
    )
    event = one(scan(line.format(0, "ALLREDUCE") + line.format(1, "BROADCAST")), "nccl-desync")
    assert [(o["op"], o["ranks"]) for o in event.fields["ops"]] == [("ALLREDUCE", [0]), ("BROADCAST", [1])]


def test_a_flood_of_assertions_is_one_event(scan: Scan) -> None:
    """One line per thread, then the exception: one event with its count and the assertion."""
    thread = (
        "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_kernel: block:"
        " [0,0,0], thread: [{},0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
    )
    reading = scan(
        steps(3)
        + "".join(thread.format(i) for i in range(200))
        + failed("RuntimeError: CUDA error: device-side assert triggered")
    )
    event = one(reading, "device-assert")
    assert event.fields["count"] == 201
    assert event.fields["assertion"] == "t >= 0 && t < n_classes"
    assert event.line == 3 + 200 + 4


def test_anomaly_mode_names_the_forward_line(scan: Scan) -> None:
    """The warning's stack and the exception are one event."""
    text = """UserWarning: Error detected in SqrtBackward0. Traceback of forward call that caused the error:
  File "/home/me/model.py", line 93, in forward
    y = torch.sqrt(x)
  File "/opt/conda/lib/python3.11/site-packages/torch/functional.py", line 1, in sqrt
    return _sqrt(x)
 (Triggered internally at python_anomaly_mode.cpp:122.)
RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.
"""
    event = one(scan(text), "anomaly-nan")
    assert (event.line, event.fields["function"], event.fields["output"]) == (7, "SqrtBackward0", 0)
    assert event.fields["forward"] == {
        "file": "/home/me/model.py",
        "line": 93,
        "function": "forward",
        "code": "y = torch.sqrt(x)",
    }


STRIDES = """UserWarning: Grad strides do not match bucket view strides. This may indicate grad was not created according to the contract.
grad.sizes() = {0}, strides() = {1}
bucket_view.sizes() = {0}, strides() = {2} (Triggered internally at reducer.cpp:335.)
  return Variable._execution_engine.run_backward(
"""  # noqa: E501


def test_stride_warnings_are_folded_by_shape(scan: Scan) -> None:
    """One event per pair of strides, with its count and the memory formats."""
    depthwise = STRIDES.format([64, 1, 3, 3], [9, 1, 3, 1], [9, 9, 3, 1])
    conv = STRIDES.format([8, 8, 3, 3], [72, 1, 24, 8], [72, 9, 3, 1])
    events = scan(depthwise + conv + depthwise + depthwise).events
    assert [(e.kind, e.severity, e.line, e.fields.get("count", 1)) for e in events] == [
        ("ddp-stride", "warning", 1, 3),
        ("ddp-stride", "warning", 5, 1),
    ]
    harmless, real = (e.fields for e in events)
    assert (harmless["grad_format"], harmless["bucket_format"], harmless["same_memory"]) == (
        "ambiguous",
        "ambiguous",
        True,
    )
    assert (real["grad_format"], real["bucket_format"], real["same_memory"]) == ("channels_last", "contiguous", False)
    assert real["grad_strides"] == [72, 1, 24, 8]


@pytest.mark.parametrize(
    ("sizes", "strides", "name"),
    [
        ([2, 3, 4, 5], [60, 20, 5, 1], "contiguous"),
        ([2, 3, 4, 5], [60, 1, 15, 3], "channels_last"),
        ([2, 3, 4, 5, 6], [360, 1, 90, 18, 3], "channels_last_3d"),
        ([2, 1, 4, 5], [20, 1, 5, 1], "ambiguous"),
        ([2, 3, 1, 1], [3, 1, 3, 3], "ambiguous"),
        ([2, 3], [1, 2], "other"),
        ([], [], "contiguous"),
    ],
)
def test_memory_formats(sizes: list[int], strides: list[int], name: str) -> None:
    """Strides of dimensions of size 1 decide nothing."""
    assert memory_format(sizes, strides) == name


def test_diagnostic_lines_name_the_parameter(scan: Scan) -> None:
    """A [STRIDE-DIAG] line with its continuation gives parameter, shape and strides."""
    text = (
        "[STRIDE-DIAG][rank 0][iter 0] NON-CONTIGUOUS gradient in model.conv2.weight\n"
        "  shape=(64, 1, 3, 3), stride=(9, 1, 3, 1)\n  expected_stride=(9, 9, 3, 1)\n"
    )
    fields = one(scan(text), "stride-diag").fields
    assert (fields["parameter"], fields["shape"], fields["stride"], fields["expected_stride"]) == (
        "model.conv2.weight",
        [64, 1, 3, 3],
        [9, 1, 3, 1],
        [9, 9, 3, 1],
    )
    assert (fields["format"], fields["expected_format"], fields["same_memory"]) == ("ambiguous", "ambiguous", True)


def test_a_diagnostic_line_names_the_parameter_of_a_warning(scan: Scan) -> None:
    """A warning and a diagnostic line with the same shape and strides mean the same parameter, on the rank that the
    line says."""
    text = (
        "UserWarning: Grad strides do not match bucket view strides. This is not an error, but may impair "
        "performance.\n"
        "grad.sizes() = [16, 16, 3, 3], strides() = [144, 1, 48, 16]\nbucket_view.sizes() = [16, 16, 3, 3], strides() "
        "= [144, 9, 3, 1]\n"
        "[STRIDE-DIAG][rank 2][iter 0] NON-CONTIGUOUS gradient in net.a.weight\n  shape=(16, 16, 3, 3), stride=(144, "
        "1, 48, 16)\n"
        "[STRIDE-DIAG][rank 2][iter 0] NON-CONTIGUOUS gradient in net.b.weight\n  shape=(8, 8, 3, 3), stride=(72, 1, "
        "24, 8)\n"
    )
    assert one(scan(text), "ddp-stride").fields["named"] == ["net.a.weight"]
    assert {e.rank for e in scan(text).events if e.kind == "stride-diag"} == {2}


def test_a_recompile_limit_names_the_function(scan: Scan) -> None:
    """Every line of the message has its own prefix."""
    p = "W1120 20:33:57.237000 1574 torch/_dynamo/convert_frame.py:1994] [0/8] "
    text = (
        f"{p}torch._dynamo hit config.recompile_limit (8)\n{p}   function: 'forward' (/home/me/m.py:11)\n{p}   "
        "last reason: 0/7: n == 7\n"
    )
    fields = one(scan(text), "dynamo-recompile-limit").fields
    assert (fields["limit"], fields["function"], fields["last_reason"]) == (8, "forward", "0/7: n == 7")


def test_overflows_are_a_note_with_their_course(scan: Scan) -> None:
    """Skipped steps of loss scaling: one event, count, first and last scale; no warning."""
    line = (
        "[2026-11-20 12:00:14,074] [INFO] [loss_scaler.py:265:update_scale] [deepspeed]"
        " OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}\n"
    )
    event = one(scan(line.format(65536, 32768) + steps(4) + line.format(32768, 16384)), "ds-overflow")
    assert (event.severity, event.fields["count"], event.fields["scale_from"], event.fields["last"]["scale_to"]) == (
        "info",
        2,
        65536.0,
        16384.0,
    )


ENDINGS = [
    (steps(3) + "`Trainer.fit` stopped: `max_epochs=3` reached.\n", "completed"),
    (steps(3) + "{'train_runtime': 98.0, 'train_loss': 2.7, 'epoch': 2.0}\n", "completed"),
    (steps(3) + "2026-11-20 12:00:01 | INFO | fairseq_cli.train | done training in 12.3 seconds\n", "completed"),
    (
        steps(3) + "[2026-11-20 03:20:47,467] [INFO] [launch.py:460:main] Process 73579 exits successfully.\n",
        "completed",
    ),
    (steps(3) + failed("KeyboardInterrupt"), "interrupted"),
    (
        steps(3) + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T12:45:36 DUE TO TIME LIMIT ***\n",
        "time-limit",
    ),
    (
        steps(3) + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T12:45:36 DUE TO PREEMPTION ***\n",
        "preempted",
    ),
    (
        steps(3) + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T12:45:36 DUE TO JOB REQUEUE ***\n",
        "preempted",
    ),
    (steps(3) + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T12:45:36 ***\n", "interrupted"),
    (steps(3) + "command terminated with exit code 137\n", "killed"),
    (steps(3) + "[2]    4711 segmentation fault (core dumped)  python train.py\n", "crashed"),
    (
        steps(3)
        + "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n",
        "out-of-memory",
    ),
    (steps(3) + "srun: error: node003: task 5: Out Of Memory\n", "out-of-memory"),
    (
        steps(3) + "/var/spool/slurmd/job7/slurm_script: line 12: 4711 Killed                  python train.py\n",
        "killed",
    ),
    (steps(3) + "Segmentation fault (core dumped)\n", "crashed"),
    (steps(3) + failed("RuntimeError: Timed out waiting 1800000ms for recv operation to complete", 0), "hung"),
    (steps(3) + "Received SIGTERM: 15\n", "killed"),
    (steps(3) + "step 3 lo", "cut"),
    (steps(3) + "step 3 loss 0.5", None),
    (steps(3), None),
    (failed("ValueError: x") + steps(3) + "Training complete\n", "completed"),
    ("", None),
]


@pytest.mark.parametrize(("text", "ended"), ENDINGS, ids=[f"{i}-{e}" for i, (_, e) in enumerate(ENDINGS)])
def test_how_a_run_ended(scan: Scan, text: str, ended: str | None) -> None:
    """The end is read where the text tells it, and left open where it does not."""
    assert scan(text).ended == ended


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: n1: task 3: Exited with exit code 1",
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-20T12:45:36 ***",
        "Received SIGTERM: 15",
    ],
)
def test_what_follows_a_failure_is_its_consequence(scan: Scan, line: str) -> None:
    """Reports of scheduler and launcher after a task's own error are notes under it."""
    reading = scan(steps(3) + failed("ValueError: x", 3) + line + "\n")
    assert kinds(reading)["generic-exception"] == "error"
    (after,) = [e for e in reading.events if e.kind != "generic-exception"]
    assert (after.severity, after.fields["victim_of"]["rank"]) == ("info", 3)


def test_a_requeued_job_says_its_node_and_its_start(scan: Scan) -> None:
    """The first line of a job script, printed again with another number and node, is another attempt; a row of the
    training is not, for all that its numbers differ."""
    banner = "==== job 4410 restart_count={} node={} ====\n"
    preempted = "slurmstepd: error: *** JOB 4410 ON {} CANCELLED AT 2026-10-21T21:05:22 DUE TO PREEMPTION ***\n"
    first = banner.format(0, "a-017") + steps(5) + preempted.format("a-017")
    second = banner.format(1, "b-003") + steps(3)
    assert {e.severity for e in scan(first + second).events} == {"info"}
    assert scan(first + steps(3)).ended == "preempted"
    assert scan(steps(5) + preempted.format("a-017") + "step 5 loss 0.3333\n").ended == "preempted"


def test_exceptions_of_a_shutdown_are_consequences_of_the_stop(scan: Scan) -> None:
    """After Ctrl-C whatever breaks is no failure of the run."""
    reading = scan(steps(3) + failed("KeyboardInterrupt") + failed("OSError: handle is closed"))
    assert set(kinds(reading).values()) == {"info"}
    assert reading.ended == "interrupted"


def test_attempts_in_one_file(scan: Scan) -> None:
    """A job started again in the same file: the last attempt decides, the earlier failures are warnings."""
    banner = "Loaded module: python3/3.11\n"
    reading = scan(banner + failed("ValueError: one") + banner + failed("TypeError: two") + banner)
    assert [(e.severity, e.fields.get("attempt", 1)) for e in reading.events] == [("warning", 1), ("error", 2)]
    assert scan(banner + failed("ValueError: one") + banner + steps(5) + "Training complete\n").ended == "completed"


def test_nul_bytes_are_evidence_of_a_crash(scan: Scan) -> None:
    """A hole of NUL bytes in the file is left where a node went down."""
    reading = scan(steps(3) + "step 3 lo" + "\0" * 100 + "\n")
    assert one(reading, "silent-stop").severity == "warning"


def test_lines_of_physical_count(scan: Scan) -> None:
    """Line numbers count line feeds: carriage returns start no line."""
    assert one(scan("a\rb\rc\nloss 1\rBatch 17: Invalid loss, terminating training\n"), "keras-nan").line == 2


def test_ranks_and_world_size_are_facts(scan: Scan) -> None:
    """What the prefixes and the start-up lines say about the job."""
    facts = scan("world_size=8\n[rank0]: Traceback (most recent call last):\n[rank3]: ValueError: x y\n").facts
    assert facts["world_size"] == 8
    assert facts["ranks"] == [0, 3]


def test_a_compiler_error_names_the_users_code(scan: Scan) -> None:
    """The frames under `from user code:` belong to the message, behind an empty line."""
    message = "AssertionError: lift_tracked_freevar_to_input should not be called on root SubgraphTracer"
    text = (
        failed(message)
        + '\nfrom user code:\n   File "/home/me/model.py", line 55, in forward\n    x = self.drop_path(x)\n\nSet '
        "TORCHDYNAMO_VERBOSE=1\n"
    )
    fields = one(scan(text), "dynamo-lift-freevar").fields
    assert (fields["user_file"], fields["user_line"]) == ("/home/me/model.py", 55)


def test_a_spawned_process_is_known_by_its_number(scan: Scan) -> None:
    """torch.multiprocessing.spawn prints the traceback of its process after its own: the process is to blame."""
    text = (
        failed("torch.multiprocessing.spawn.ProcessRaisedException: ")
        + "\n-- Process 3 terminated with the following error:\n"
        + failed("ValueError: bad")
    )
    reading = scan(text)
    assert kinds(reading) == {"child-exit": "info", "generic-exception": "error"}
    assert one(reading, "generic-exception").rank == 3


def test_workers_of_ray_are_told_apart_by_process(scan: Scan) -> None:
    """Two workers in turn: two tracebacks, each with its own frame."""
    block = ["Traceback (most recent call last):", '  File "{}.py", line 3, in f', "{}: x y"]
    workers = {4121: ("a", "ValueError"), 4122: ("b", "TypeError")}
    lines = [
        f"(RayTrainWorker pid={pid}, ip=10.0.0.3) {line.format(name if 'File' in line else error)}"
        for line in block
        for pid, (name, error) in workers.items()
    ]
    events = scan("\n".join(lines) + "\n").events
    assert [(e.message, e.fields["frame"]["file"]) for e in events] == [
        ("ValueError: x y", "a.py"),
        ("TypeError: x y", "b.py"),
    ]


def test_trouble_while_a_finished_run_is_taken_down_is_a_note(scan: Scan) -> None:
    """A watchdog that fires after the last step has lost nothing."""
    text = (
        steps(3)
        + "`Trainer.fit` stopped: `max_epochs=3` reached.\n[E1120 12:31:25.4 ProcessGroupNCCL.cpp:1316] [Rank 0] "
    )
    reading = scan(
        text + "Heartbeat monitor timed out! Process will be terminated after dumping debug info. "
        "workMetaList_.size()=0\nAborted (core dumped)\n"
    )
    assert set(kinds(reading).values()) == {"info"}
    assert reading.ended == "completed"


def test_what_every_epoch_says_is_no_end(scan: Scan) -> None:
    """A line that comes after each epoch does not say that the run is complete."""
    assert scan("".join(steps(30) + f"Epoch {i} training finished\n" for i in range(3)) + steps(15)).ended is None
    assert scan(steps(30) + "Training finished\n").ended == "completed"


def test_the_rank_that_is_behind_is_named(scan: Scan) -> None:
    """Each rank says how many collectives it had started: the smallest number is the laggard."""
    header = "[rank{0}]:[E1120 12:31:25.416 ProcessGroupNCCL.cpp:616] "
    work = (
        "WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=100, NumelOut=100, Timeout(ms)=1800000) ran for 1800031 "
        "milliseconds before timing out."
    )
    line = header + "[Rank {0}] Watchdog caught collective operation timeout: " + work + "\n"
    more = (
        header
        + "[PG ID 0 Rank {0}] Timeout at NCCL work: 812, last enqueued NCCL work: {1}, last completed NCCL work: 811.\n"
    )
    event = one(
        scan("".join((line + more).format(rank, last) for rank, last in ((0, 815), (1, 812), (2, 815)))), "nccl-timeout"
    )
    assert event.fields["ranks"] == [0, 1, 2]
    assert event.fields["enqueued_by_rank"] == {"0": 815, "1": 812, "2": 815}
    assert event.fields["laggard"] == 1


def test_a_restart_by_the_launcher_is_a_new_attempt(scan: Scan) -> None:
    """torchrun starts the workers again and training goes on: the failure before it lost nothing."""
    restart = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
    reading = scan(steps(5) + failed("ValueError: x y", 1) + restart + steps(20))
    assert kinds(reading) == {"generic-exception": "info", "elastic-restart": "warning"}
    again = scan(steps(5) + failed("ValueError: x y", 1) + restart + failed("TypeError: z", 1) + table(1, 1, {}))
    assert [(e.kind, e.severity) for e in again.events][::2] == [
        ("generic-exception", "warning"),
        ("generic-exception", "error"),
    ]


def test_the_table_alone_says_who_failed_first(scan: Scan) -> None:
    """Without any other trace the launcher's report is the failure, and names rank and exit code."""
    event = one(scan(steps(5) + table(2, 1, {0: -15})), "elastic-child-failed")
    assert event.severity == "error"
    assert event.message.endswith("ChildFailedError: first observed failure: rank 2, exit code 1")


def test_a_segmentation_fault_with_its_stack(scan: Scan) -> None:
    """faulthandler prints the innermost frame first; the shell's line belongs to the same fault."""
    text = """Fatal Python error: Segmentation fault

Current thread 0x00007f66 (most recent call first):
  File "/opt/lib/python3.11/site-packages/cv2/x.py", line 9 in decode
  File "/home/me/data.py", line 67 in load
  File "/home/me/train.py", line 73 in <module>

Segmentation fault (core dumped)
"""
    reading = scan(steps(3) + text)
    event = one(reading, "segv")
    assert event.line == 4
    assert (event.fields["frame"]["file"], event.fields["frame"]["line"]) == ("/home/me/data.py", 67)
    assert reading.ended == "crashed"


def test_a_long_compiler_message_with_paragraphs(scan: Scan) -> None:
    """Explanations and hints stand between the message and the user's code."""
    message = "torch._dynamo.exc.Unsupported: Data-dependent branching"
    more = "  Explanation: x\n\n\n  Hint: y\n\n  Hint: z\n\n For more details\n\n"
    more += 'from user code:\n   File "/home/me/m.py", line 56, in f\n    if x.sum() > 0:\n'
    event = one(scan(failed(message) + more), "dynamo-unsupported")
    assert event.fields["frame"] == {"file": "/home/me/m.py", "line": 56, "function": "f", "code": ""}


def test_a_class_with_a_leading_underscore(scan: Scan) -> None:
    """torch's own error classes begin with one."""
    message = (
        "torch._C._LinAlgError: linalg.svd: The algorithm failed to converge because the input matrix contained "
        "non-finite values."
    )
    assert one(scan(failed(message)), "svd-nan").line == 4


def test_a_rank_that_left_without_a_word_is_named_by_the_launcher(scan: Scan) -> None:
    """The others only say that a connection closed: the table's rank is the first to fail."""
    reading = scan(steps(5) + failed(CLOSED, 0) + table(1, 3, {0: -15}))
    assert kinds(reading) == {"gloo-closed": "info", "elastic-child-failed": "error"}
    assert one(reading, "elastic-child-failed").rank == 1
    assert one(reading, "gloo-closed").fields["victim_of"]["rank"] == 1


def test_an_ignored_exception_ends_nothing(scan: Scan) -> None:
    """What Python calls ignored is a note; the same exception without that word is an error."""
    text = "Training finished, saved to out\nException ignored in: <function Loader.__del__ at 0x7f>\n"
    (note,) = [
        e
        for e in scan(steps(9) + text + failed("AssertionError: can only test a child process")).events
        if e.kind != "exception-ignored"
    ]
    assert note.severity == "info"
    assert (
        kinds(scan(steps(9) + failed("AssertionError: can only test a child process")))["generic-exception"] == "error"
    )


def test_what_a_library_warns_of_is_no_error(scan: Scan) -> None:
    """The words of a failure inside a Python warning are a warning."""
    text = (
        "/opt/conv.py:4: UserWarning: Plan failed with a cudnnException: cudnn_status: CUDNN_STATUS_NOT_SUPPORTED "
        "(Triggered internally)\n"
    )
    assert kinds(scan(text + steps(9))) == {"cudnn": "warning"}
    assert scan(text + steps(9)).ended is None


def test_the_table_quotes_the_exception_of_a_decorated_program(scan: Scan) -> None:
    """The traceback inside torchelastic's table is the failure, at its line and with its rank, if the rank printed none
    itself."""
    quoted = "".join(
        f"{line}\n"
        for line in (
            "  traceback : Traceback (most recent call last):",
            '    File "/opt/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 347, in wrapper',  # noqa: E501
            "      return f(*args, **kwargs)",
            '    File "/home/me/train.py", line 9, in main',
            "  IndexError: index out of range in self",
            "  ",
        )
    )
    text = steps(3) + table(2, 1, {0: -15})
    head, _, end = text.rpartition("  traceback : To enable")
    text = head + quoted + end.partition("\n")[2]
    event = one(scan(text), "index-oob-cpu")
    assert (event.rank, event.severity, event.fields["exception"]) == (2, "error", "IndexError")
    assert event.line == text.split("\n").index("  IndexError: index out of range in self") + 1
    assert one(scan(text), "elastic-child-failed").severity == "info"
    printed = scan(failed("IndexError: index out of range in self", 2) + text)
    assert [e.kind for e in printed.events].count("index-oob-cpu") == 1


def test_a_signal_with_and_without_a_rank_is_one_event(scan: Scan) -> None:
    """The process that says its number, and mpirun that says its rank, mean the same death."""
    text = (
        "[n4:123] Signal: Segmentation fault (11)\nmpirun noticed that process rank 5 with PID 123 on node n4 "
        "exited on signal 11 (Segm.).\n"
    )
    event = one(scan(steps(3) + text), "segv")
    assert (event.rank, event.line) == (5, 4)


def test_an_exception_whose_words_are_mostly_a_note_is_a_cause(scan: Scan) -> None:
    """An empty data set that ended the program is to blame, not the launcher's table behind it."""
    text = (
        steps(1)
        + failed("ValueError: num_samples should be a positive integer value, but got num_samples=0")
        + table(0, 1, {})
    )
    assert kinds(scan(text)) == {"empty-cache": "error", "elastic-child-failed": "info"}


def test_a_victim_of_no_known_rank_may_be_the_one_in_the_table(scan: Scan) -> None:
    """The launcher's rank counts as silent only where it is known that the others are others."""
    assert kinds(scan(steps(3) + failed(CLOSED) + table(1, 1, {}))) == {
        "gloo-closed": "error",
        "elastic-child-failed": "info",
    }
    assert kinds(scan(steps(3) + failed(CLOSED, 0) + table(1, 1, {})))["elastic-child-failed"] == "error"


def test_a_store_that_went_away_is_no_cause(scan: Scan) -> None:
    """The process that held it was killed; what the others say of it comes after that, whichever line is first."""
    gone = (
        "[rank1]:[W901 21:19:09.254317555 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=51): Broken pipe\n"
    )
    killed = "E0901 21:19:11.000000 1 api.py:874] failed (exitcode: -9) local_rank: 0 (pid: 12) of binary: python\n"
    reading = scan(steps(3) + gone + killed)
    assert (reading.ended, kinds(reading)) == ("killed", {"store-timeout": "info", "host-kill": "error"})
    alone = scan(steps(3) + gone)
    assert (alone.ended, kinds(alone)) == ("crashed", {"store-timeout": "error"})
