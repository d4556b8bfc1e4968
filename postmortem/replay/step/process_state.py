"""The state of the process, kept unchanged around a replay."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from postmortem.replay.step.rng import Rng

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HOOK_DICTS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)


@contextmanager
def preserved(models: Iterable[torch.nn.Module] = ()) -> Iterator[None]:
    """Restores the process on exit: random generators, grad and anomaly mode, deterministic and matmul flags, default
    dtype, thread count, warning filters, working directory, environment, ``sys.path``, and the hooks of `models` and of
    all modules. `State` restores what a step changes in model and optimizer."""
    rng, threads, dtype = Rng.capture(), torch.get_num_threads(), torch.get_default_dtype()
    grad, anomaly, checks = torch.is_grad_enabled(), torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    deterministic, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    matmul = torch.get_float32_matmul_precision()
    cudnn = [
        (name, getattr(torch.backends.cudnn, name)) for name in ("deterministic", "benchmark", "enabled", "allow_tf32")
    ]
    where, environment, path = os.getcwd(), dict(os.environ), list(sys.path)
    shared = torch.nn.modules.module
    tables = [
        getattr(shared, n)
        for n in vars(shared)
        if n.startswith("_global_") and n.endswith(("_hooks", "_always_called"))
    ]
    tables += [vars(m)[n] for model in models for m in model.modules() for n in _HOOK_DICTS if n in vars(m)]
    hooks = [(table, dict(table)) for table in tables]
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for table, saved in hooks:
            table.clear()
            table.update(saved)
        torch.set_grad_enabled(grad)
        torch.autograd.set_detect_anomaly(anomaly, checks)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_float32_matmul_precision(matmul)
        for name, value in cudnn:
            if getattr(torch.backends.cudnn, name) != value:
                setattr(torch.backends.cudnn, name, value)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        sys.path[:] = path
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        os.chdir(where)
        rng.restore()
