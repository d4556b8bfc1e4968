"""Names of logs that do not end as a log: the parts that a logger or logrotate set aside (``train.log.1``,
``train.log.2024-05-01``), the output of jobs."""

from __future__ import annotations

import re
from typing import NamedTuple

from postmortem.core.patterns import later

_ROTATED = re.compile(
    r"(?P<base>.+\.(?:log|out|err|txt|stdout|stderr))"
    r"(?:\.(?P<number>\d{1,3})|[.-](?P<date>20\d\d-?[01]\d-?[0-3]\d)(?:[T_.-](?P<clock>\d\d[-_.:]?\d\d(?:[-_.:]?\d\d)?))?)"
    r"(?:\.(?:gz|xz|zst|bz2))?",
    re.IGNORECASE,
)


GRID_OUTPUT = re.compile(r"\.p?[oe](?=\d{3,12}(?:[-.]\d{1,6})?$)")
"""The ending of the output and of the error output of a job of Grid Engine or PBS, before its number and that of the
array task: ``train.o8812034``, ``train.e8812034.7``."""
NAMED_LOG = later(
    rf"{GRID_OUTPUT.pattern}|\.log\.(?:INFO|WARNING|ERROR|FATAL)(?:\.\d{{8}}-\d{{6}}(?:\.\d{{1,9}})?)?$|^(?:screenlog|workerlog)\.\d{{1,3}}$"
)
"""The same, a log of glog or absl, ``train.host.me.log.INFO.20261019-070122.512``, one of screen, and one of a rank
of PaddlePaddle's launcher."""


class Rotated(NamedTuple):
    """The name of the log that a part belongs to, and the place of the part in it: parts are read in rising order.

    Of numbers the largest is the oldest, of dates the first.
    """

    base: str
    place: int


def rotated(name: str) -> Rotated | None:
    """What the name of a part of a log says; None for any other name."""
    found = _ROTATED.fullmatch(name)
    if found is None:
        return None
    if found["number"]:
        return Rotated(found["base"], -int(found["number"]))
    stamp = re.sub(r"\D", "", found["date"] + (found["clock"] or "")).ljust(14, "0")
    return Rotated(found["base"], int(stamp) - 10**15)
