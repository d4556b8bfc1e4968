"""What the processes of a look or a trial have noted: one JSON object a line, in one file per process.

Read by the process that forks the trials and by the launcher; needs no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MOVED = "moved after DDP was made"
"""What gives a gradient other strides than DDP's buckets, where the parameter itself has got others."""
Key = tuple[str, str]
"""Model and parameter."""


@dataclass(slots=True)
class Told:
    """One run of the program. processes: their lines, of those in which a backward pass ran."""

    processes: list[list[dict[str, Any]]] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All lines of a kind."""
        return [line for lines in self.processes for line in lines if line["kind"] == kind]

    @property
    def seen(self) -> bool:
        """A backward pass ran."""
        return bool(self.of("backward"))

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return max((line["world"] for line in self.of("backward")), default=1)

    @property
    def warnings(self) -> int:
        """Of DDP about strides, of all ranks."""
        return sum(line["warnings"] for line in self.of("backward"))

    @property
    def iterations(self) -> int:
        """Backward passes that every process made at the same line."""
        return max((line["iteration"] + 1 for line in self.of("backward")), default=0)

    @property
    def odd(self) -> dict[Key, list[dict[str, Any]]]:
        """Parameter -> the gradients with other strides that reached it."""
        found: dict[Key, list[dict[str, Any]]] = {}
        for line in self.of("odd"):
            found.setdefault((line["model"], line["parameter"]), []).append(line)
        return found

    @property
    def replicated(self) -> bool:
        """Under DistributedDataParallel, the program's own or ours."""
        return bool(self.of("ddp"))


def read(folder: Path) -> Told:
    """The lines in `folder`; one that is cut is left out."""
    found = Told()
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines()]
        if any(line["kind"] == "backward" for line in lines):
            found.processes.append(lines)
    return found


def changes(told: Told) -> list[dict[str, Any]]:
    """What is worth a trial, in order: each with the name of the fix, the lines and the parameters it is for."""
    firsts = [lines[0] for lines in told.odd.values()]
    if not firsts:
        return []
    placed = sorted({(f["place"][0], f["place"][1]) for f in firsts if f["place"] and f["op"] != MOVED})
    named = [{"model": f["model"], "parameter": f["parameter"], "strides": f["strides"]} for f in firsts]
    small = [n for n, f in zip(named, firsts, strict=True) if f["difference"] == "size-1"]
    packed = [n for n, f in zip(named, firsts, strict=True) if f["dense"]]
    found: list[dict[str, Any]] = []
    if placed and small:
        found.append({"fix": "view", "places": placed})
    if placed:
        found.append({"fix": "contiguous", "places": placed})
    if small:
        found.append({"fix": "gradient-hook", "parameters": small})
    if packed:
        found.append({"fix": "parameter-layout", "parameters": packed})
    if told.ranks == 1 or any(line["as_view"] for line in told.of("ddp")):
        found.append({"fix": "no-bucket-view"})
    return found
