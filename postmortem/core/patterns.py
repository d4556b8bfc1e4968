"""Regular expressions that are compiled on their first use: a scan needs few of the hundreds that there are."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class Later:
    """Stands for a pattern until one of its attributes is asked for; it then has the methods of the compiled one."""

    compiled: re.Pattern[Any]

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._given = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self.compiled = re.compile(*self._given)
        for method in ("search", "match", "fullmatch", "sub", "finditer", "findall"):
            setattr(self, method, getattr(self.compiled, method))
        return getattr(self.compiled, name) if name != "compiled" else self.compiled

    def __reduce__(self) -> tuple[type[Later], tuple[str | bytes, int]]:
        return Later, self._given


def later(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, on first use. The functions of `re` do not take it, its methods are as those of a pattern.

    >>> later(r"loss (\\d+)").search("loss 7")[1]
    '7'
    """
    return cast("re.Pattern[AnyStr]", Later(text, flags))
