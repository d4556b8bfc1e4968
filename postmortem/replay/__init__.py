"""Replay: rerun the step at fault and name the culprit. The only part that needs torch."""

from __future__ import annotations

import importlib.util


def device_summary() -> str:
    """The devices that a replay could run on, in words; says so where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return "none: replay needs torch"
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"CPU and {len(names)} × CUDA ({', '.join(dict.fromkeys(names))})"
    return "CPU (CUDA is not available)"
