"""Files of one run that are named after what they hold: ``loss.txt`` beside ``accuracy.txt`` or ``val_loss.txt``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postmortem.runs.splits import SPLITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from postmortem.runs.claimed import ClaimedFile

_METRICS = {
    *("loss", "losses", "acc", "accs", "accuracy", "accuracies", "error", "errors", "err", "auc", "auroc", "f1"),
    *("iou", "miou", "dice", "map", "psnr", "ssim", "mse", "mae", "rmse", "ppl", "perplexity", "bleu", "score"),
    *("scores", "reward", "rewards", "return", "returns", "lr", "grad", "norm"),
}
_BESIDE = {
    *SPLITS,
    "log",
    "logs",
    "history",
    "curve",
    "list",
    "avg",
    "mean",
    "average",
    "total",
    "epoch",
    "step",
    "per",
}


def joined_by_metric(files: Iterable[ClaimedFile], keys: Mapping[Path, str]) -> dict[Path, str]:
    """path -> one key for all files of a folder whose names consist of metrics and splits only; none if all have one
    name. keys: path -> what would name its run."""
    found = [file.path for file in files if _is_metric(file.path.stem)]
    if len({path.stem.lower() for path in found}) < 2:
        return {}
    return dict.fromkeys(found, min(keys[path] for path in found))


def _is_metric(stem: str) -> bool:
    words = set(re.findall(r"[^\W_]+", stem.lower()))
    return bool(words & _METRICS) and words <= _METRICS | _BESIDE
