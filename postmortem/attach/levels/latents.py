"""The latents of a diffusion pipeline: a row of the history for each denoising step."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from postmortem.attach.levels.rows import Rows
from postmortem.attach.measure.later import Later

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ("latent/mean", "latent/std", "latent/absmax", "latent/nonfinite")


class Latents:
    """Writes ``history-latents.jsonl`` in a folder; rows count the calls from 0 as `step`, `latent/t` is the timestep.

    The first non-finite latents are told on stderr at once. On a device nothing is waited for.
    """

    def __init__(self, folder: Path, rank: Callable[[], int | None]) -> None:
        self._rows = Rows(folder, rank, name="history-latents")
        self._later = Later()
        self._calls = 0
        self._told = False

    def add(self, t: Any, x: torch.Tensor) -> None:
        """The latents x, of any shape, at timestep t. Raises OSError if a row cannot be written."""
        row: dict[str, Any] = {"step": self._calls, "time": round(time.time(), 3)}
        self._calls += 1
        with torch.no_grad():
            values = x.detach()
            values = torch.view_as_real(values) if values.is_complex() else values
            values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
            std, mean = torch.std_mean(values, correction=0)
            bad = values.numel() - torch.isfinite(values).sum()
            found = [mean, std, values.abs().amax(), bad]
        when = [t] if isinstance(t, torch.Tensor) and t.numel() == 1 else []
        if not when and not isinstance(t, torch.Tensor):
            row["latent/t"] = float(t)
        self._later.send([*found, *when], lambda numbers: self._arrived(row, numbers))
        self._later.look()

    def _arrived(self, row: dict[str, Any], numbers: list[float]) -> None:
        row.update((name, _rounded(value)) for name, value in zip((*NAMES, "latent/t"), numbers, strict=False))
        if row[NAMES[-1]] and not self._told:
            self._told = True
            at = f" (timestep {row['latent/t']:g})" if "latent/t" in row else ""
            words = f"{row[NAMES[-1]]:.0f} values of the latents are non-finite at denoising step {row['step']}{at}"
            print(f"postmortem: {words}", file=sys.stderr)
        self._rows.add(row)

    def close(self) -> None:
        """Writes what is on its way. OSError."""
        self._later.drain()
        self._rows.flush()


def _rounded(value: float) -> float:
    return float(f"{value:.8g}") if math.isfinite(value) else value
