"""What several lines or several ranks say together: memory formats, the launcher's table, who waited for whom."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from postmortem.readers.text.failures.fold import Failure, Occurrence
from postmortem.readers.text.failures.tracebacks import Frame, exception_of
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Sequence

_FRAME = re.compile(r'^[ \t]{0,40}File "([^"]{1,500})", line (\d{1,9}), in (.{1,200})(?:\n\s+(\S.{0,300}))?', re.MULTILINE)
_FAULT = re.compile(r'^[ \t]{0,40}File "([^"]{1,500})", line (\d{1,9}) in (\S{1,200})', re.MULTILINE)
"""faulthandler's frames: innermost first, and without a comma."""
_FAILED = re.compile(
    r"rank {0,9}: (?P<rank>\d{1,6}) \(local_rank: (?P<local_rank>\d{1,6})\)\s{0,3}exitcode {0,9}: (?P<exitcode>-?\d{1,6}) \(pid: (?P<pid>\d{1,9})\)"
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
    """Adds to the failures what follows from several of them, and failures that only follow from others."""
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
            _table(failures, failure, text, ranks)
    _name_strided(failures)
    _tasks(failures, ranks)
    for failure in failures:
        if failure.first.rank is None and isinstance(failure.fields.get("local_rank"), int):
            failure.first.rank = failure.fields["local_rank"]  # the best that is known
    _timeouts(failures, ranks, world_size)


def memory_format(sizes: Sequence[int], strides: Sequence[int]) -> str:
    """ "contiguous", "channels_last", "channels_last_3d", "ambiguous" (fits both) or "other".

    Strides of dimensions of size 1 say nothing: no step is ever taken along them.
    """
    last = {4: ("channels_last", (0, 2, 3, 1)), 5: ("channels_last_3d", (0, 2, 3, 4, 1))}.get(len(sizes))
    contiguous = _ordered(sizes, strides, tuple(range(len(sizes))))
    if last is not None and _ordered(sizes, strides, last[1]):
        return "ambiguous" if contiguous else last[0]
    return "contiguous" if contiguous else "other"


def _ordered(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Whether memory is packed with the dimensions in this order, outermost first."""
    step = 1
    for d in reversed(order):
        if sizes[d] != 1 and strides[d] != step:
            return False
        step *= sizes[d]
    return True


def stride_formats(fields: dict[str, Any]) -> dict[str, Any]:
    """Memory formats of gradient and bucket, and whether the two differ only along dimensions of size 1 (harmless)."""
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
    """The memory format that a diagnostic line shows, the one it expects, and whether they are the same memory."""
    found = stride_formats(
        {"grad_sizes": fields.get("shape"), "grad_strides": fields.get("stride"), "bucket_sizes": fields.get("shape")}
        | {"bucket_strides": fields.get("expected_stride")}
    )
    names = {"grad_format": "format", "bucket_format": "expected_format"}
    return {names.get(key, key): value for key, value in found.items()}


def _name_strided(failures: list[Failure]) -> None:
    """Gives each DDP stride warning the parameters that diagnostic lines name with the same shape and strides."""
    diagnosed = [f.fields for f in failures if f.signature.id == "stride-diag" and "parameter" in f.fields]
    for failure in failures:
        if failure.signature.id == "ddp-stride":
            shape, strides = failure.fields.get("grad_sizes"), failure.fields.get("grad_strides")
            names = sorted({d["parameter"] for d in diagnosed if d.get("shape") == shape and d.get("stride") == strides})
            if names:
                failure.fields["named"] = names


def _forward_frame(text: str) -> dict[str, Any]:
    """The innermost line of the user's own code in the forward stack that anomaly mode prints."""
    frames = [Frame(m[1], int(m[2]), m[3].strip(), (m[4] or "").strip()) for m in _FRAME.finditer(text)]
    own = [f for f in frames if f.yours] or frames
    if not own:
        return {}
    frame = own[-1]
    return {"forward": {"file": frame.file, "line": frame.line, "function": frame.function, "code": frame.code}}


def _fault_frame(text: str) -> dict[str, Any]:
    """The innermost line of the user's own code where faulthandler shows the stack."""
    frames = [Frame(m[1], int(m[2]), m[3]) for m in _FAULT.finditer(text)]
    frame = next((f for f in frames if f.yours), None)
    return {"frame": {"file": frame.file, "line": frame.line, "function": frame.function, "code": ""}} if frame is not None else {}


def _table(failures: list[Failure], table: Failure, text: str, ranks: set[int]) -> None:
    """Reads torchelastic's table: all failed ranks, and ranks killed by a signal, which print nothing themselves."""
    rows = [{k: int(v) for k, v in m.groupdict().items()} for m in _FAILED.finditer(text)]
    if not rows:
        return
    table.fields["failures"] = rows
    if "root_rank" in table.fields:
        said = f"first observed failure: rank {table.fields['root_rank']}, exit code {table.fields['exitcode']}"
        table.first.message = f"{table.first.message.rstrip(': ')}: {said}"
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
        _quoted(failures, table, quoted, text)
    for row in rows:
        died_of = _DIED_OF.get(row["exitcode"])
        if died_of in CATALOGUE and died_of is not None and row["pid"] not in known:
            failures.append(_derived(died_of, table, f"rank {row['rank']} ended with exit code {row['exitcode']}", dict(row), row["rank"]))


def _tasks(failures: list[Failure], ranks: set[int]) -> None:
    """The tasks that srun names are ranks, unless each task is a launcher that reports on ranks of its own."""
    said = [f for f in failures if f.signature.id == "srun-exit"]
    if any(f.signature.role == "wrapper" and f not in said for f in failures):
        return
    for failure in said:
        named = [rank for seen in failure.members for rank in _listed(seen.fields.get("tasks", ""))]
        if not named:
            continue
        failure.first.rank, failure.ranks = named[0], sorted(set(named))
        ranks.update(named)
        if failure.fields.get("how") == "Out Of Memory":
            for kill in failures:
                if kill.signature.id == "slurm-oom-kill" and not kill.ranks:
                    kill.first.rank, kill.ranks = named[0], failure.ranks


def _listed(tasks: str) -> list[int]:
    """The numbers of a list such as ``0-3,5``; none where it cannot be one of ranks."""
    spans = [(int(first), int(last or first)) for first, last in _TASKS.findall(tasks)]
    return [n for first, last in spans for n in range(first, last + 1)] if sum(last - first for first, last in spans) < _MOST_TASKS else []


def _quoted(failures: list[Failure], table: Failure, quoted: re.Match[str], text: str) -> None:
    """The exception that the table quotes, unless the rank printed it itself."""
    named = exception_of(quoted["title"], strict=False)
    found = CATALOGUE.match(quoted["title"], exception=True)
    if named is None or found is None:
        return
    rank, kind = int(quoted["rank"]), found[0].id
    if any(f.signature.id == kind and (not f.ranks or rank in f.ranks) for f in failures):
        return
    fields = {**found[1], "exception": named[0].rpartition(".")[2], "exception_class": named[0], "exception_message": named[1]}
    failure = _derived(kind, table, quoted["title"], fields, rank)
    failure.first.line += text.count("\n", 0, quoted.start("title"))
    failures.append(failure)


def _derived(kind: str, source: Failure, message: str, fields: dict[str, Any], rank: int | None) -> Failure:
    """A failure that follows from what another one says."""
    fields.pop("rank", None)
    seen = source.first
    occurrence = Occurrence(
        signature=CATALOGUE[kind],
        severity=CATALOGUE[kind].severity,
        line=seen.line,
        first_line=seen.first_line,
        message=message,
        rank=rank,
        wall_time=seen.wall_time,
        fields=fields,
        attempt=seen.attempt,
        progress=seen.progress,
        ordinary=seen.ordinary,
    )
    return Failure(occurrence, [rank] if rank is not None else [], 1, occurrence, fields, CATALOGUE[kind].severity, [occurrence])


def _timeouts(failures: list[Failure], ranks: set[int], world_size: int) -> None:
    """Who waited, who is missing (the suspects), and whether the ranks ran different collectives."""
    _join_details(failures)
    waiting = [f for f in failures if f.signature.id in ("nccl-timeout", "gloo-timeout")]
    if not waiting:
        return
    enqueued = {o.rank: o.fields["last_enqueued"] for f in waiting for o in f.members if o.rank is not None and "last_enqueued" in o.fields}
    if len(set(enqueued.values())) > 1:
        laggard = min(enqueued, key=lambda rank: enqueued[rank])
        for failure in waiting:
            failure.fields |= {"enqueued_by_rank": {str(rank): n for rank, n in sorted(enqueued.items())}, "laggard": laggard}
    waited = {rank for failure in waiting for rank in failure.ranks}
    everyone = set(range(world_size)) if 1 < world_size <= 100_000 else ranks
    suspects = sorted(everyone - waited) if waited else []
    for failure in waiting:
        if missing := {rank for seen in failure.members for rank in seen.fields.get("missing_ranks", ())}:
            failure.fields["missing_ranks"] = sorted(missing)
    listed = {rank for failure in waiting for rank in failure.fields.get("missing_ranks", ())}
    suspects = sorted(listed) or suspects  # a barrier says itself who did not come
    for failure in waiting:
        if suspects:
            failure.fields["suspects"] = suspects
    by_seq: dict[int, list[Failure]] = {}
    for failure in waiting:
        if "seq" in failure.fields and "op" in failure.fields:
            by_seq.setdefault(failure.fields["seq"], []).append(failure)
    for seq, group in by_seq.items():
        runs = {(f.fields["op"], f.fields.get("numel_in")) for f in group}
        if len(runs) > 1:
            ops = [{"op": f.fields["op"], "numel": f.fields.get("numel_in"), "ranks": f.ranks} for f in group]
            said = "; ".join(f"rank {', '.join(map(str, o['ranks'])) or '?'} {o['op']} of {o['numel']} elements" for o in ops)
            failures.append(
                _derived("nccl-desync", group[-1], f"at collective number {seq} the ranks differ: {said}", {"seq": seq, "ops": ops}, None)
            )


def _join_details(failures: list[Failure]) -> None:
    """A rank says in a second line how far it had come: that belongs to its timeout."""
    timeouts = [f for f in failures if f.signature.id == "nccl-timeout" and "op" in f.fields]
    for detail in [f for f in failures if f.signature.id == "nccl-timeout" and "op" not in f.fields]:
        of = next(
            (t for t in timeouts if t.fields.get("seq") == detail.fields.get("seq", t.fields.get("seq")) and set(detail.ranks) <= set(t.ranks)), None
        )
        if of is not None:
            of.fields = detail.fields | of.fields
            of.members += detail.members
            failures.remove(detail)
