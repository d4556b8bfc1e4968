"""Adds to failures what several lines or ranks show together: memory formats, the launcher's table, who waited."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from postmortem.readers.text.failures.exceptions import Frame, exception_of
from postmortem.readers.text.failures.fold import Failure, Occurrence
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Sequence

_FRAME = re.compile(
    r'^[ \t]{0,40}File "([^"]{1,500})", line (\d{1,9}), in (.{1,200})(?:\n\s+(\S.{0,300}))?', re.MULTILINE
)
_FAULT = re.compile(r'^[ \t]{0,40}File "([^"]{1,500})", line (\d{1,9}) in (\S{1,200})', re.MULTILINE)
"""faulthandler's frames: innermost first, and without a comma."""
_FAILED = re.compile(
    r"rank {0,9}: (?P<rank>\d{1,6}) \(local_rank: (?P<local_rank>\d{1,6})\)\s{0,3}"
    r"exitcode {0,9}: (?P<exitcode>-?\d{1,6}) \(pid: (?P<pid>\d{1,9})\)"
)
_QUOTED = re.compile(
    r"^ {2}rank {0,9}: (?P<rank>\d{1,6}) \(.{0,60}\n {2}exitcode.{0,200}\n(?: {2}\w.{0,300}\n){0,3}"
    r" {2}traceback : Traceback \(most recent call last\):\n(?: {4}.{0,1000}\n){1,200} {2}(?P<title>\S.{0,2000})$",
    re.MULTILINE,
)
"""The traceback that a program decorated with `record` leaves in torchelastic's table."""
_TASKS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_MOST_TASKS = 100_000
_DIED_OF = {-9: "host-kill", -11: "segv", -7: "dl-bus-shm"}


def enrich(failures: list[Failure], ranks: set[int], world_size: int) -> None:
    """Completes the fields and ranks of failures from one another, and adds failures that only others report.

    `ranks` are the ranks seen so far; those that launchers name are added to it.
    """
    for failure in list(failures):
        text = failure.fields.pop("text", "")
        if failure.signature.id == "ddp-stride":
            failure.fields |= stride_formats(failure.fields)
        elif failure.signature.id == "stride-diag":
            failure.fields |= _diagnosed_format(failure.fields)
        elif failure.signature.id == "anomaly-nan" and text:
            failure.fields |= _forward_frame(text)
        elif failure.signature.id in ("segv", "hang-dump") and text:
            failure.fields |= _fault_frame(text)
        elif failure.signature.id == "elastic-child-failed":
            _add_table(failures, failure, text, ranks)
    _add_stride_parameters(failures)
    _add_srun_ranks(failures, ranks)
    for failure in failures:
        if failure.first.rank is None and isinstance(failure.fields.get("local_rank"), int):
            failure.first.rank = failure.fields["local_rank"]  # the best that is known
    _add_waiting(failures, ranks, world_size)


def memory_format(sizes: Sequence[int], strides: Sequence[int]) -> str:
    """The memory format: "contiguous", "channels_last", "channels_last_3d", "ambiguous" (fits both) or "other".

    Strides of dimensions of size 1 are ignored: no step is ever taken along them.
    """
    last = {4: ("channels_last", (0, 2, 3, 1)), 5: ("channels_last_3d", (0, 2, 3, 4, 1))}.get(len(sizes))
    contiguous = _is_packed(sizes, strides, tuple(range(len(sizes))))
    if last is not None and _is_packed(sizes, strides, last[1]):
        return "ambiguous" if contiguous else last[0]
    return "contiguous" if contiguous else "other"


def _is_packed(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Whether memory is packed with the dimensions in `order`, outermost first."""
    step = 1
    for d in reversed(order):
        if sizes[d] != 1 and strides[d] != step:
            return False
        step *= sizes[d]
    return True


def stride_formats(fields: dict[str, Any]) -> dict[str, Any]:
    """Memory formats of gradient and bucket, and whether they differ only along dimensions of size 1 (harmless)."""
    found: dict[str, Any] = {}
    sizes = fields.get("grad_sizes")
    for name in ("grad", "bucket"):
        shape, strides = fields.get(f"{name}_sizes"), fields.get(f"{name}_strides")
        if shape and strides and len(shape) == len(strides):
            found[f"{name}_format"] = memory_format(shape, strides)
    grad, bucket = fields.get("grad_strides"), fields.get("bucket_strides")
    if sizes and grad and bucket and len(sizes) == len(grad) == len(bucket):
        found["same_memory"] = all(g == b for n, g, b in zip(sizes, grad, bucket, strict=True) if n != 1)
    return found


def _diagnosed_format(fields: dict[str, Any]) -> dict[str, Any]:
    """The memory format that a diagnostic line shows, the one it expects, and whether both are the same in memory."""
    found = stride_formats(
        {"grad_sizes": fields.get("shape"), "grad_strides": fields.get("stride"), "bucket_sizes": fields.get("shape")}
        | {"bucket_strides": fields.get("expected_stride")}
    )
    names = {"grad_format": "format", "bucket_format": "expected_format"}
    return {names.get(key, key): value for key, value in found.items()}


def _add_stride_parameters(failures: list[Failure]) -> None:
    """Gives each DDP stride warning the parameters that diagnostic lines name with the same shape and strides."""
    diagnosed = [f.fields for f in failures if f.signature.id == "stride-diag" and "parameter" in f.fields]
    for failure in failures:
        if failure.signature.id == "ddp-stride":
            shape, strides = failure.fields.get("grad_sizes"), failure.fields.get("grad_strides")
            same = [d for d in diagnosed if d.get("shape") == shape and d.get("stride") == strides]
            if same:
                failure.fields["named"] = sorted({d["parameter"] for d in same})


def _forward_frame(text: str) -> dict[str, Any]:
    """The innermost line of the user's own code in the forward stack that anomaly mode prints."""
    frames = [Frame(m[1], int(m[2]), m[3].strip(), (m[4] or "").strip()) for m in _FRAME.finditer(text)]
    own = [f for f in frames if f.yours] or frames
    if not own:
        return {}
    return {"forward": own[-1].as_field()}


def _fault_frame(text: str) -> dict[str, Any]:
    """The innermost line of the user's own code in a stack printed by faulthandler."""
    frames = [Frame(m[1], int(m[2]), m[3]) for m in _FAULT.finditer(text)]
    frame = next((f for f in frames if f.yours), None)
    return {} if frame is None else {"frame": frame.as_field()}


def _add_table(failures: list[Failure], table: Failure, text: str, ranks: set[int]) -> None:
    """Reads torchelastic's table: all failed ranks, also those killed by a signal, which print nothing themselves."""
    rows = [{k: int(v) for k, v in m.groupdict().items()} for m in _FAILED.finditer(text)]
    if not rows:
        return
    table.fields["failures"] = rows
    if "root_rank" in table.fields:
        root = f"first observed failure: rank {table.fields['root_rank']}, exit code {table.fields['exitcode']}"
        table.first.message = f"{table.first.message.rstrip(': ')}: {root}"
    ranks.update(row["rank"] for row in rows)
    by_pid = {row["pid"]: row for row in rows}
    known = set()
    for failure in failures:
        row = by_pid.get(failure.fields.get("pid", -1))
        if row is not None:
            known.add(row["pid"])
            if failure.first.rank is None:
                failure.first.rank = row["rank"]
                failure.ranks = [row["rank"]]
    for quoted in _QUOTED.finditer(text):
        _add_quoted(failures, table, quoted, text)
    for row in rows:
        kind = _DIED_OF.get(row["exitcode"])
        if kind is not None and kind in CATALOGUE and row["pid"] not in known:
            message = f"rank {row['rank']} ended with exit code {row['exitcode']}"
            failures.append(_derived(kind, table, message, dict(row), row["rank"]))


def _add_srun_ranks(failures: list[Failure], ranks: set[int]) -> None:
    """The tasks that srun names are ranks, unless each task is a launcher that reports on ranks of its own."""
    exits = [f for f in failures if f.signature.id == "srun-exit"]
    if any(f.signature.role == "wrapper" and f not in exits for f in failures):
        return
    for failure in exits:
        named = [rank for seen in failure.members for rank in _numbers(seen.fields.get("tasks", ""))]
        if not named:
            continue
        failure.first.rank, failure.ranks = named[0], sorted(set(named))
        ranks.update(named)
        if failure.fields.get("how") == "Out Of Memory":
            for kill in failures:
                if kill.signature.id == "slurm-oom-kill" and not kill.ranks:
                    kill.first.rank, kill.ranks = named[0], failure.ranks


def _numbers(tasks: str) -> list[int]:
    """The numbers of a list such as ``0-3,5``; empty if there are too many for a list of ranks."""
    spans = [(int(first), int(last or first)) for first, last in _TASKS.findall(tasks)]
    if sum(last - first for first, last in spans) >= _MOST_TASKS:
        return []
    return [n for first, last in spans for n in range(first, last + 1)]


def _add_quoted(failures: list[Failure], table: Failure, quoted: re.Match[str], text: str) -> None:
    """Adds the exception that the table quotes, unless the rank printed it itself."""
    named = exception_of(quoted["title"], strict=False)
    found = CATALOGUE.match(quoted["title"], exception=True)
    if named is None or found is None:
        return
    rank, kind = int(quoted["rank"]), found[0].id
    if any(f.signature.id == kind and (not f.ranks or rank in f.ranks) for f in failures):
        return
    name, message = named
    own = {"exception": name.rpartition(".")[2], "exception_class": name, "exception_message": message}
    failure = _derived(kind, table, quoted["title"], found[1] | own, rank)
    failure.first.line += text.count("\n", 0, quoted.start("title"))
    failures.append(failure)


def _derived(kind: str, source: Failure, message: str, fields: dict[str, Any], rank: int | None) -> Failure:
    """A failure that another one reports."""
    fields.pop("rank", None)
    seen = source.first
    return Failure.of(
        Occurrence(
            signature=CATALOGUE[kind],
            severity=CATALOGUE[kind].severity,
            line=seen.line,
            first_line=seen.first_line,
            message=message,
            rank=rank,
            wall_time=seen.wall_time,
            fields=fields,
            attempt=seen.attempt,
            training=seen.training,
            ordinary=seen.ordinary,
        )
    )


def _add_waiting(failures: list[Failure], ranks: set[int], world_size: int) -> None:
    """Who waited in a collective, which ranks are missing (the suspects), and whether the ranks ran different ones."""
    _join_details(failures)
    waiting = [f for f in failures if f.signature.id in ("nccl-timeout", "gloo-timeout")]
    if not waiting:
        return
    members = [seen for failure in waiting for seen in failure.members if seen.rank is not None]
    enqueued = {seen.rank: seen.fields["last_enqueued"] for seen in members if "last_enqueued" in seen.fields}
    if len(set(enqueued.values())) > 1:
        laggard = min(enqueued, key=lambda rank: enqueued[rank])
        by_rank = {str(rank): n for rank, n in sorted(enqueued.items())}
        for failure in waiting:
            failure.fields |= {"enqueued_by_rank": by_rank, "laggard": laggard}
    _add_suspects(waiting, set(range(world_size)) if 1 < world_size <= _MOST_TASKS else ranks)
    _add_desync(failures, waiting)


def _add_suspects(waiting: list[Failure], everyone: set[int]) -> None:
    """Names the ranks that did not come: those that a barrier lists, else those that were not seen waiting."""
    for failure in waiting:
        if missing := {rank for seen in failure.members for rank in seen.fields.get("missing_ranks", ())}:
            failure.fields["missing_ranks"] = sorted(missing)
    listed = {rank for failure in waiting for rank in failure.fields.get("missing_ranks", ())}
    waited = {rank for failure in waiting for rank in failure.ranks}
    if suspects := listed or (everyone - waited if waited else set()):
        for failure in waiting:
            failure.fields["suspects"] = sorted(suspects)


def _add_desync(failures: list[Failure], waiting: list[Failure]) -> None:
    """Adds a failure for each collective number at which the ranks ran different collectives."""
    by_seq: dict[int, list[Failure]] = {}
    for failure in waiting:
        if "seq" in failure.fields and "op" in failure.fields:
            by_seq.setdefault(failure.fields["seq"], []).append(failure)
    for seq, group in by_seq.items():
        if len({(f.fields["op"], f.fields.get("numel_in")) for f in group}) == 1:
            continue
        ops = [{"op": f.fields["op"], "numel": f.fields.get("numel_in"), "ranks": f.ranks} for f in group]
        each = (f"rank {', '.join(map(str, o['ranks'])) or '?'} {o['op']} of {o['numel']} elements" for o in ops)
        message = f"at collective number {seq} the ranks differ: {'; '.join(each)}"
        failures.append(_derived("nccl-desync", group[-1], message, {"seq": seq, "ops": ops}, None))


def _join_details(failures: list[Failure]) -> None:
    """Joins the second line of a timeout, in which a rank reports how far it came, with the first."""
    timeouts = [f for f in failures if f.signature.id == "nccl-timeout" and "op" in f.fields]
    for detail in [f for f in failures if f.signature.id == "nccl-timeout" and "op" not in f.fields]:
        timeout = next((t for t in timeouts if _is_detail(detail, t)), None)
        if timeout is not None:
            timeout.fields = detail.fields | timeout.fields
            timeout.members += detail.members
            failures.remove(detail)


def _is_detail(detail: Failure, timeout: Failure) -> bool:
    """Whether a second line belongs to a timeout: of the same ranks, and of the same collective where it names one."""
    seq = timeout.fields.get("seq")
    return detail.fields.get("seq", seq) == seq and set(detail.ranks) <= set(timeout.ranks)
