"""Strips the layers that launchers, schedulers and loggers put in front of a line of training output.

They stack: ``4: [default1]:[rank1]:[E1120 20:27:21.415 ProcessGroupNCCL.cpp:629] [Rank 1] text`` has five.
One more kind of prefix is one more entry in `_LAYERS`. Clocks without a time zone are taken as UTC: a log
does not name its time zone.
"""

from __future__ import annotations

import re
from calendar import timegm
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import eq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST = 400
"""Characters examined: no prefix is longer, but a redrawn progress bar may be megabytes."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the prefix of a line holds; None for what it does not.

    `rank` is global, `local_rank` counts within a node, `task` is the number srun writes in front (the rank
    where each task has one GPU, else the node); `wall_time` seconds since the epoch; `level` one of DEBUG,
    INFO, WARNING, ERROR, CRITICAL; `logger` the name of the logger or the source file; `host` the node.
    """

    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    level: str | None = None
    wall_time: float | None = None
    logger: str | None = None
    host: str | None = None
    pid: int | None = None

    @property
    def best_rank(self) -> int | None:
        """The rank, in order of trust: the global rank, the task number, the local rank."""
        return next((r for r in (self.rank, self.task, self.local_rank) if r is not None), None)


NOTHING = Prefix()

_DATE = (
    r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _](?P<clock>\d\d:\d\d:\d\d)"
    r"(?P<fraction>[.,]\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_SHORT_DATE = r"(?P<month>\d\d)/(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)"
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|SUCCESS|TRACE)"
_NAME = r"(?P<logger>[A-Za-z_][\w.\-/]{0,80}(?::[\w<>]{1,60}){0,2})"
_SOURCE = r"(?P<logger>[\w./\-<>]{1,120}(?::[A-Za-z_<][\w<>]{0,60})?:\d+(?::\w{1,60})?)"
_LEVELS = {
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "F": "CRITICAL",
    "D": "DEBUG",
    "C": "CRITICAL",
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
    "LOG": "INFO",
}

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_MONTH = rf"(?:{'|'.join(_MONTHS)})"

_LAYERS: tuple[tuple[str, str], ...] = (
    # first characters, pattern; tried in this order, again and again, until none fits
    (
        "[",
        r"\[\d+,(?:mpirank:)?(?P<rank>\d+)(?:,[\w.\-]{1,60})?\]<std(?:out|err|diag)>: ?",
    ),  # mpirun -tag-output: [job,rank]; SageMaker
    (">", r"(?:> )+"),  # quoted, as in mails and chats
    ("[", r"\[[Rr]ank[ _-]?(?P<rank>\d{1,6})\](?: ?:)? ?"),  # torch's excepthook, c10d, DeepSpeed
    ("[", r"\[(?P<host>worker[ _-]?\d{1,6})\] "),  # workers of TensorFlow, of data loaders: not known to be a rank
    ("[", r"\[[A-Za-z_]+(?P<local_rank>\d{1,4})\]: ?"),  # torchrun --tee: role name and local rank
    # C++ logging of torch: severity, month (one digit up to September) and day, no year
    (
        "[",
        r"\[(?P<glog>[IWEF])(?:(?P<month>\d?\d)(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<fraction>\.\d{1,9}))?"
        r" (?P<logger>[\w./\-]{1,120}:\d+)\] ?",
    ),
    # absl and torch's Python logging: I0316 10:34:38.268212 140096538502976 file.py:408]
    (
        "IWEFC",
        r"(?P<glog>[IWEFC])(?P<month>\d\d)(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<fraction>\.\d{1,9}) +\d+ "
        r"(?P<logger>[\w./\-<>]{1,120}:\d+)\] ?"
        r"(?:\[\d+/\d+(?:_\d+)?\] ?)?",
    ),
    # vLLM: level, day without a year, source
    ("IWEDC", _LEVEL + r" (?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d) (?:\[)?" + _SOURCE + r"\] ?"),
    # C++ logging of TensorFlow before its clock is set: seconds since the epoch
    ("IWEF", r"(?P<glog>[IWEF])0000 00:00:(?P<epoch>\d{9,11}\.\d{1,9}) +\d+ (?P<logger>[\w./\-]{1,120}:\d+)\] ?"),
    ("(", r"\((?:[A-Za-z_][\w.<>]{0,60} )?pid=(?P<pid>\d+)(?:, ip=(?P<host>[\w.\-:]{1,60}))?\) ?"),  # Ray
    ("0123456789", _DATE + r" (?:stdout|stderr) [FP] "),  # container runtime (CRI)
    (
        "0123456789",
        r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}) \[(?P<task>\d{1,5})\] ",
    ),  # a pod of TPUs: address and number of the worker
    ("(", r"\((?:worker|rank|proc|process|gpu|GPU|Rank)[ _-]?(?P<rank>\d{1,5})\)(?: ?:)? "),
    ("[", r"\[task " + _DATE + r"\] ?"),  # Taskcluster
    (
        "[",
        r"\[(?P<logger>[\w./\-]{1,120}:\d+) - \w{1,80} - " + _LEVEL + r" ?\] ?",
    ),  # Kaldi's Python scripts, after their date
    (
        "LVW",
        r"(?:(?P<kaldi>LOG|WARNING)|VLOG\[-?\d{1,2}\]) "
        r"\([\w.\-]{1,80}(?:\[[^\]]{1,60}\])?:(?P<logger>[^ ]{1,200}:\d+)\) ",
    ),  # Kaldi
    # bracketed date, then [LEVEL] [file:line:function] or [logger][LEVEL] - (DeepSpeed, hydra, accelerate)
    (
        "[ ",
        r" ?\["
        + _DATE
        + r"\] ?(?:\[(?P<level2>[A-Z]{4,8})\] ?(?:\["
        + _SOURCE
        + r"\] ?)?|\[(?P<logger2>[\w.\-]{1,80})\]\["
        + _LEVEL
        + r"\] ?-? ?|(?P<logger3>[\w.]{1,80}): \[(?P<level3>[A-Z]{4,8})\] ?)?",
    ),
    ("[", r"\[" + _DATE + " " + _LEVEL + r"(?: " + _SOURCE + r")?\] ?"),
    # Swin-Transformer and what took over its logger: [date name] (file line): LEVEL
    (
        "[",
        r"\[" + _DATE + r" (?P<logger>[A-Za-z][\w.\-]{0,80})\] ?(?:\([\w.\-]{1,80} \d{1,6}\): " + _LEVEL + r" ?)?",
    ),
    ("[", r"\[(?P<glog>[IWEFDC]) " + _DATE + r"(?: (?P<logger>[A-Za-z][\w.\-:]{0,80}))?\] ?"),  # Optuna, Jupyter
    ("[", r"\[" + _LEVEL + r"\|" + _DATE + r"\] ?(?:[\w./\-]{1,120}:\d+ ?)?(?:>> ?)?"),
    ("[", r"\[" + _LEVEL + r"\|(?P<logger>[\w./\-]{1,120}:\d+)\] ?" + _DATE + r" ?(?:>> ?)?"),
    # rich: day and month come in the order of the locale, so the date is not used
    ("[", r"\[\d\d/\d\d/\d\d (?P<clock>\d\d:\d\d:\d\d)\] " + _LEVEL + r" *"),
    (
        "[",
        r"\[(?P<month>\d\d)/(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?: (?P<logger>[\w.\-]{1,80}))?\]:? ?"
        r"(?:(?:(?P<logger2>[\w.\-]{1,80}) )?" + _LEVEL + r": ?)?",
    ),
    ("[", r"\[(?P<host>[A-Za-z][\w.\-]{0,60})\] (?=\d{4}-\d\d-\d\d)"),  # a node or a program in front of a date
    (
        "0123456789",
        _DATE + r"\t(?P<host>[\w.\-]{1,60}):(?P<local_rank>\d+)\t(?P<logger>[\w.\-:]{1,80})\t" + _LEVEL + r"\t",
    ),  # OLMo
    ("0123456789", _DATE + r"\t" + _NAME + r"\t" + _LEVEL + r"\t"),  # VITS
    # level, perhaps a logger, then the date, with the source after a bar or a dash (Flower)
    (
        "DIWECFST",
        _LEVEL
        + r"(?: {1,8}[A-Za-z_][\w.\-]{0,40})? {0,8}[|\-:]? {0,8}\[?"
        + _DATE
        + r"\]?(?: ?[|\-:] ?"
        + _SOURCE
        + r")?(?: ?[|\-:] ?| |$)",
    ),
    # date, then level, logger and source in any usual order, between - | : or blanks
    (
        "0123456789",
        _DATE
        + r"(?: ?[|\-:] ?| )(?:"
        + rf"{_LEVEL} *(?:[|\-:] ?| )(?:{_NAME} ?[|\-] ?|\[(?P<logger2>(?!\d+\])[\w.\-:/]{{1,80}})\] ?)?"
        + r"|(?P<logger3>[A-Za-z_/][\w.\-/]{0,160}) ?[|\-:] ?(?P<level3>[A-Z]{4,8}) ?[|\-:] ?"
        + r"|\((?P<logger4>[\w.\-:]{1,80})\) (?P<level4>[A-Z]{4,8}): ?"
        + r"|\[(?P<level5>[A-Z]{4,8})\](?::(?= ))? ?(?:\[(?!\d+\])[\w.\-:/]{1,80}\] ?)?"
        + r"|(?P<logger5>[A-Za-z_][\w.\-/]{0,80}) {1,8}"
        + _LEVEL.replace("level", "level6")
        + r"(?:: ?| {1,8})"
        + r"|)-? ?",
    ),
    ("0123456789", _DATE + r" ?"),
    (
        "0123456789",
        r"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{4}) (?P<clock>\d\d:\d\d:\d\d) - "
        + _LEVEL
        + r" - (?P<logger>[\w.\-]{1,80}) - +",
    ),  # transformers' examples
    (
        "JFMASOND",
        r"(?P<name_of_month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<day>\d{1,2}) "
        r"(?P<clock>\d\d:\d\d:\d\d) "
        r"(?P<host>[\w.\-]{1,60}) (?P<logger>[\w.\-/]{1,80})(?:\[(?P<pid>\d+)\])?: ",
    ),  # syslog, journalctl
    (
        "JFMASOND",
        rf"(?P<name_of_month>{_MONTH}) {{1,2}}(?P<day>\d{{1,2}}) (?P<clock>\d\d:\d\d:\d\d)(?: *[|:] | +- | +)",
    ),
    (
        "[0123456789",
        rf"\[?(?P<day>\d{{1,2}})[ -](?P<name_of_month>{_MONTH})(?:[ -](?P<year>\d{{4}}))?,? (?P<clock>\d\d:\d\d:\d\d)"
        r"(?P<fraction>[.,]\d{1,9})?\]?(?: *[|\-:] | +|$)(?:" + _LEVEL + r"\b ?[|\-:]? ?)?",
    ),
    # a clock without seconds is too coarse for the times of rows, so it is not used
    ("[0123456789", rf"\[?\d{{1,2}}[ -]{_MONTH}(?:[ -]\d{{4}})?,? \d\d:\d\d\]?(?: *[|\-] | +|$)"),
    ("0123456789", _SHORT_DATE + r" - (?P<logger>[\w.\-]{1,80}) - " + _LEVEL + r" - "),  # mmengine
    # DARTS and what took over its logger write %m/%d %I:%M:%S %p
    (
        "01",
        r"(?P<month>0\d|1[0-2])[/-](?P<day>[0-3]\d) (?P<clock>\d\d:\d\d:\d\d)(?P<fraction>[.,]\d{1,9})?"
        r"(?: (?P<half>[AP]M))?(?: *[|\-:] | +)(?:" + _LEVEL + r"\b ?[|\-:]? ?)?",
    ),
    ("[0123456789", r"\[?(?P<clock>\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?\]? (?:[|\-] )?(?:" + _LEVEL + r" ?[|\-:]? ?)?"),
    # logback and log4j, after their clock: [thread] LEVEL logger - text
    ("[", r"\[[A-Za-z][\w.\-#/ ]{0,60}\] " + _LEVEL + r" {1,5}(?P<logger>[A-Za-z_$][\w.$]{0,120})(?::\d+)? - "),
    # the same with the logger in front, as Python programs write it: [thread] logger LEVEL text
    ("[", r"\[[A-Za-z][\w.\-#/ ]{0,60}\] " + _NAME + " {1,8}" + _LEVEL + r"(?: ?[|\-:] ?| {1,8})"),
    ("IWEDC", _LEVEL + r":(?P<logger>[A-Za-z_][\w.\-]{0,80}):"),  # logging.basicConfig
    ("[", r"\[" + _LEVEL + r"\](?::(?= ))? ?(?:\[" + _SOURCE + r"\] ?)?"),
    ("[", r"\[rank: (?P<rank>\d+)\] ?"),  # Lightning
)
_LABEL = re.compile(r" *(?P<task>\d{1,5}): ")
_IN_BRACKETS = re.compile(r"\[(?P<task>\d{1,5})\]:? (?=\D|\d+[h:])")
"""A process in front of the lines of all: ``[2] step 15 loss 0.4``. An epoch, a step or a sample may look like that."""
_SAME_ORDER = 0.95
"""Share of the numbers that repeat after a fixed distance, from which on they come in the same order."""
_HOST_LABEL = re.compile(
    r"(?!slurmstepd|srun\b)(?P<host>[A-Za-z][\w.\-]{0,60}\d[\w.\-]{0,30}): |(?P<replica>[A-Za-z][\w.\-]{0,80}/\d{1,5}) "
)
"""A node's name (pdsh), or the name and number of a replica (torchx)."""

_BY_FIRST: dict[str, tuple[re.Pattern[str], ...]] = {}
for _first, _pattern in _LAYERS:
    for _character in _first:
        _BY_FIRST[_character] = (*_BY_FIRST.get(_character, ()), re.compile(_pattern))


def peel(text: str, *, labels: bool = False, year: int | None = None) -> tuple[str, Prefix]:
    """Strip the prefixes of a line; returns (rest with its indentation, their content).

    `labels`: the file's lines begin with a task number or a node's name (see `labelled`); otherwise ``1: foo`` is
    content. `year` completes dates that lack one; without it their `wall_time` is None.
    """
    if not labels and text[:1] not in _BY_FIRST:
        return text, NOTHING
    head = text[:_LONGEST]
    at = 0
    found: dict[str, str] = {}
    if labels and (match := _LABEL.match(head) or _HOST_LABEL.match(head) or _IN_BRACKETS.match(head)):
        found.update(match.groupdict())
        at = match.end()
    while at < len(head):
        for pattern in _BY_FIRST.get(head[at], ()):
            match = pattern.match(head, at)
            if match is not None and match.end() > at:
                found.update({k: v for k, v in match.groupdict().items() if v is not None})
                at = match.end()
                break
        else:
            break
    return (text[at:], _prefix(found, year)) if at else (text, NOTHING)


def labelled(lines: Sequence[str]) -> bool:
    """Whether most of these lines begin with a task number or a node's name, as `srun -l` and pdsh write.

    More than one label must occur, or every line must have it, so that numbered text is not taken for one.
    """
    total = hits = 0
    seen: set[str] = set()
    order: list[str] = []
    for line in lines:
        if not line.strip():
            continue
        total += 1
        match = _LABEL.match(line) or _HOST_LABEL.match(line)
        if match is not None:
            hits += 1
            label = match.group().strip()
            seen.add(label)
            order.append(label)
    if total < 4 or hits < 0.7 * total:
        return _numbered_processes(lines)
    return len(seen) <= hits / 2  # a numbered list never repeats a number


def _numbered_processes(lines: Sequence[str]) -> bool:
    """Whether most of these lines begin with the number of a process in brackets.

    Processes come again and again, in varying order. Epochs rise; batches and samples come again in the same order.
    """
    written = [line for line in lines if line.strip()]
    found = [int(match["task"]) for line in written if (match := _IN_BRACKETS.match(line))]
    n = len(set(found))
    if len(found) < max(8, 4 * n, 0.7 * len(written)) or n < 2 or set(found) != set(range(n)):
        return False
    falls = sum(b < a for a, b in pairwise(found))
    if falls < len(found) / (4 * n):
        return False
    repeats = (
        sum(map(bool, map(eq, found, found[k:]))) / (len(found) - k) for k in range(1, min(4 * n, len(found) // 2) + 1)
    )
    return all(share < _SAME_ORDER for share in repeats)


def _prefix(found: dict[str, str], year: int | None) -> Prefix:
    level = next(
        (found[k] for k in ("level", "level2", "level3", "level4", "level5", "level6", "glog", "kaldi") if k in found),
        None,
    )
    return Prefix(
        rank=_int(found.get("rank")),
        local_rank=_int(found.get("local_rank")),
        task=_int(found.get("task")),
        level=_LEVELS.get(level, level) if level else None,
        wall_time=_wall_time(found, year),
        logger=next((found[k] for k in ("logger", "logger2", "logger3", "logger4", "logger5") if k in found), None),
        host=found.get("host") or found.get("replica"),
        pid=_int(found.get("pid")),
    )


def _int(digits: str | None) -> int | None:
    return None if digits is None else int(digits[:18])


def _wall_time(found: dict[str, str], year: int | None) -> float | None:
    if "epoch" in found:
        return float(found["epoch"])
    if "name_of_month" in found:
        found["month"] = f"{_MONTHS.index(found['name_of_month']) + 1:02d}"
    if "month" not in found:
        return None
    years = found.get("year") or (str(year) if year is not None else None)
    if years is None:
        return None
    minute = found["clock"][:5]
    if "half" in found:  # a clock of twelve hours
        minute = f"{int(minute[:2]) % 12 + 12 * (found['half'] == 'PM'):02d}{minute[2:]}"
    seconds = _epoch(years, found["month"], found["day"], minute, found.get("zone", ""))
    if seconds is None:
        return None
    return seconds + int(found["clock"][6:8]) + (float("0." + found["fraction"][1:]) if "fraction" in found else 0.0)


YEARS = range(1970, 2200)
"""Years that a log can have been written in: one damaged digit makes another, and no calendar goes beyond 9999."""


def is_a_date(year: int, month: int, day: int, hours: int, minutes: int) -> bool:
    """Whether a log can have been written then; a day that its month does not have counts into the next."""
    return year in YEARS and 1 <= month <= 12 and 1 <= day <= 31 and hours < 24 and minutes < 60


@lru_cache(maxsize=4096)
def _epoch(year: str, month: str, day: str, minute: str, zone: str) -> int | None:
    """Seconds since the epoch at the start of that minute; None for a date that the calendar does not have."""
    y, m, d, hours, minutes = int(year), int(month), int(day), int(minute[:2]), int(minute[3:5])
    if not is_a_date(y, m, d, hours, minutes):
        return None
    shift = 0
    if zone and zone != "Z":
        shift = (1 if zone[0] == "+" else -1) * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return timegm((y, m, d, hours, minutes, 0)) - shift
