"""Finds the checkpoints of a run by names and small JSON files alone: no torch, no weights are opened.

A checkpoint is a file (one of the `suffixes` of a format, or ``pytorch_model.bin``) or a folder: transformers'
``checkpoint-N/``, shards with their ``*.index.json``, torch.distributed.checkpoint (``.metadata`` beside ``*.distcp``),
DeepSpeed's ``global_stepN/``, Megatron's ``iter_N/mp_rank_00/``, or any folder with a model beside its optimizer.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.captures import HEAD as OF_A_CAPTURE
from postmortem.checkpoints.formats import FORMATS, weight_suffixes
from postmortem.core.model import Checkpoint
from postmortem.core.patterns import later

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

STEP_KEYS = (
    "global_step",
    "step",
    "iter_num",
    "iteration",
    "iter",
    "it",
    "num_steps",
    "current_step",
    "global_steps",
    "train_step",
    "steps",
    "update",
    "num_updates",
)
"""Keys under which checkpoints store their step, in order of priority."""

STATE_FILES = (
    "trainer_state.json",
    "state.json",
    "train_state.json",
    "training_state.json",
    "meta.json",
    "metadata.json",
    "progress.json",
)
_BIN = later(r"(pytorch_model|model|adapter_model|consolidated|checkpoint|ckpt|weights).*\.bin$", re.I)
_COMPANION = later(
    r"^(optim\w*|opt|sched\w*|lr_sched\w*|scaler|rng\w*|random_states?|training_args|zero_pp_rank|dataloader|sampler)([._\-\d]|$)",
    re.I,
)
_MODEL = later(
    r"^(model|pytorch_model|adapter_model|consolidated|mp_rank|weights|diffusion_pytorch_model|unet|ema|module|net)",
    re.I,
)
_NOT_WEIGHTS = later(
    r"(^|[_\-.])(data(set)?|batch(es)?|tokens?|cache|vocab|train|val|test|embeddings?|features?|samples?|labels?|scripted|traced)([_\-.\d]|$)",
    re.I,
)
_CKPT_FOLDER = later(
    r"(^|[_\-.=])(checkpoint|ckpt|step|global_?step|iter(ation)?|epoch|last|latest|best|final|update)s?([_\-.=]|\d|$)",
    re.I,
)
_OF_A_STEP = later(
    r"(checkpoint|ckpt|(global_?)?step|iter(ation)?|epoch|update)s?[_\-=]?\d+|checkpoint[_\-](last|latest|best|final)",
    re.I,
)
_CKPT_FOLDERS = later(r"(model_?)?(checkpoint|ckpt|snapshot|weight|model|state|save|saved_model)s?", re.I)
_NAMED_STEP = later(
    r"(?:^|[_\-.\s]|(?<=[a-z]))(?:global_?step|steps?|iter(?:ation)?s?|updates?|checkpoint|ckpt|it)[_\-=.]{0,2}(\d{1,12})(k?)(?![a-z\d])",
    re.I,
)
_LAST_NUMBER = later(r"(?:^|[_\-=])(\d{1,12})(k?)(?![a-z\d.=])", re.I)
_EPOCH = later(r"epochs?[_\-=]?\d+|(?:^|[_\-])ep?\d+|v\d+(?:\.\d+)*$", re.I)
_EPOCH_NUMBER = later(r"(?:epochs?|(?:^|[_\-])ep)[_\-=]?(\d{1,9})", re.I)
_LOGS = later(r"(tb|tf)?[_-]?(tensorboard|events|logs?|summary|summaries|metrics|csv)([_-]?logs?)?|tb", re.I)
_NOT_OF_A_RUN = (
    "__pycache__",
    "site-packages",
    "dist-packages",
    "node_modules",
)  # a .pth there is a list of Python's own paths
_MAX_ENTRIES, _MAX_DEPTH, _MAX_JSON = 20_000, 4, 64 * 2**20


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """The checkpoints in and below `folder` (four levels), by step; those whose step nothing tells come last.

    Nothing is opened but small JSON files. Folders that cannot be listed are passed over; a file is a folder of one.
    A link to a folder elsewhere is followed where it is named as one of checkpoints: the disk for them may be another.
    """
    if folder.is_file():
        return [Checkpoint(path=str(folder), step=step_of(folder))]
    found: dict[str, Path] = {}
    budget = [_MAX_ENTRIES]
    for path in _walk(folder, 0, budget, folder):
        found.setdefault(os.path.realpath(path), path)
    listed = [Checkpoint(path=str(path), step=step_of(path)) for path in found.values()]
    return sorted(listed, key=lambda c: (c.step is None, c.step or 0, c.path))


def home_of(folder: Path) -> Path:
    """The folder of a run whose log lies in `folder`: the one above if that is for logs alone (``exp7/tb``)."""
    return folder.parent if _LOGS.fullmatch(folder.name) else folder


def checkpoints_of(folder: Path, roots: Sequence[Path], shared: Collection[Path]) -> list[Checkpoint]:
    """The checkpoints of the run with its log in `folder`: below it, else below the folders above it.

    Those are looked into up to one of `roots` (or the run's home), and as long as they are not `shared` with others.
    """
    return next(
        (found for place in (folder, *folders_above(folder, roots, shared)) if (found := find_checkpoints(place))), []
    )


def folders_above(folder: Path, roots: Sequence[Path], shared: Collection[Path]) -> Iterator[Path]:
    """The folders above `folder`, nearest first, that belong to the same run.

    Up to one of `roots` (or the run's home), and as long as they are not `shared` with other runs.
    """
    for above in folder.parents:
        if above in shared:
            return
        if above != home_of(folder) and not any(above == root or root in above.parents for root in roots):
            return
        yield above


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is itself one checkpoint, file or folder, by its name and those in it."""
    if path.is_file():
        return is_weights(path.name)
    try:
        files = [p.name for p in path.iterdir() if p.is_file()]
    except OSError:
        return False
    return is_checkpoint_folder(path, files)


def _walk(folder: Path, depth: int, budget: list[int], top: Path) -> list[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError:
        return []
    budget[0] -= len(entries)
    if budget[0] < 0:
        return []
    files = [e.name for e in entries if _is(e, file=True)]
    folders = [e.name for e in entries if _is(e, file=False) and _is_searched(e, top)]
    if OF_A_CAPTURE in files:
        return []
    weights = [n for n in files if is_weights(n)]
    if is_checkpoint_folder(folder, files, root=depth == 0):
        nested = [] if depth else [p for n in folders for p in _walk(folder / n, 1, budget, top)]
        return [folder, *nested]
    if depth and _CKPT_FOLDER.search(folder.name) and not weights and any(n.startswith("mp_rank") for n in folders):
        return [folder]
    found = [folder / n for n in weights if not _COMPANION.match(n)]
    if depth < _MAX_DEPTH:
        found += [p for n in folders for p in _walk(folder / n, depth + 1, budget, top)]
    return found


def _is_searched(folder: os.DirEntry[str], top: Path) -> bool:
    """Whether checkpoints of a run may lie in a folder, which may be a link, in the folder `top`."""
    if folder.name.startswith(".") or folder.name in _NOT_OF_A_RUN:
        return False
    if not folder.is_symlink() or _CKPT_FOLDERS.fullmatch(folder.name) or _CKPT_FOLDER.search(folder.name):
        return True
    return os.path.realpath(folder.path).startswith(os.path.join(os.path.realpath(top), ""))


def _is(entry: os.DirEntry[str], *, file: bool) -> bool:
    try:
        return entry.is_file() if file else entry.is_dir()
    except OSError:
        return False


def is_weights(name: str) -> bool:
    """Whether a file of this name holds weights or optimizer state."""
    low = name.lower()
    if low.startswith("."):
        return False
    if low.endswith(".bin"):
        return _BIN.match(low) is not None
    if not low.endswith(weight_suffixes()):
        return False
    return _NOT_WEIGHTS.search(_stem(low)) is None or _CKPT_FOLDER.search(_stem(low)) is not None


def is_checkpoint_folder(folder: Path, files: list[str], *, root: bool = False) -> bool:
    """Whether `folder`, which holds `files`, is one checkpoint (and no folder of several)."""
    if OF_A_CAPTURE in files:
        return False
    lost = "the folders that only this format recognises"
    if any(FORMATS.call(known, "is_folder", files, default=False, path=folder, lost=lost) for known in FORMATS):
        return True
    if any(n.endswith((".safetensors.index.json", ".bin.index.json")) for n in files):
        return True
    weights = [n for n in files if is_weights(n)]
    models = [n for n in weights if _MODEL.match(n) and not _COMPANION.match(n)]
    companions = [n for n in files if _COMPANION.match(n)] + [n for n in files if n in STATE_FILES[:4]]
    alone = len({step_in_name(_stem(n)) for n in models}) <= 1  # model_10.pt, model_20.pt are two checkpoints
    if root:
        return (
            bool(models) and bool(companions) and alone and not any(step_in_name(_stem(n)) is not None for n in models)
        )
    return (
        bool(weights)
        and alone
        and len(models) == len([n for n in weights if not _COMPANION.match(n)])
        and (_CKPT_FOLDER.search(folder.name) is not None or _numbered(folder))
    )


def names_a_checkpoint(folder: Path) -> bool:
    """Whether the name of a folder is that of one checkpoint: ``checkpoint-40``, ``step_40``, ``checkpoints/40``."""
    return _OF_A_STEP.fullmatch(folder.name) is not None or _numbered(folder)


def shown(path: Path) -> str:
    """The name of a checkpoint; where that is a number alone, with the folder that it lies in."""
    return f"{path.parent.name}/{path.name}" if path.name.isdecimal() else path.name


def _numbered(folder: Path) -> bool:
    """``checkpoints/40``: a number in a folder of checkpoints."""
    return folder.name.isdecimal() and _CKPT_FOLDERS.fullmatch(folder.parent.name) is not None


def step_of(path: Path) -> int | None:
    """The step of a checkpoint: of its name, else of a small JSON file in the folder, else None."""
    step = step_in_name(path.name if path.is_dir() else _stem(path.name))
    if step is None and path.is_dir():
        step = next((s for s in map(_step_in_json, (path / n for n in STATE_FILES)) if s is not None), None)
    return step


def _stem(name: str) -> str:
    for suffix in (*weight_suffixes(), ".bin"):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def companions_of(path: Path) -> list[Path]:
    """The other files of the same step beside a file: ``D_60.pth`` and ``optimizer_60.pth`` of ``G_60.pth``."""
    step = step_in_name(_stem(path.name))
    if step is None or path.is_dir():
        return []
    beside = [
        p for p in sorted(path.parent.iterdir()) if p.name != path.name and p.suffix == path.suffix and p.is_file()
    ]
    return [
        p for p in beside if (is_weights(p.name) or _COMPANION.match(p.name)) and step_in_name(_stem(p.name)) == step
    ]


def step_in_name(stem: str) -> int | None:
    """The step that a name like ``step_000099``, ``epoch=3-step=400``, ``ckpt-90``, ``model_100`` or ``100`` has.

    None if it has none; an epoch number is not a step.
    """
    named = list(_NAMED_STEP.finditer(stem))
    match = named[-1] if named else None
    if match is None:
        numbers = list(_LAST_NUMBER.finditer(_EPOCH.sub("", stem)))
        match = numbers[-1] if numbers and len(numbers[-1].group(1)) < 10 else None
    if match is None:
        return None
    return int(match.group(1)) * (1000 if match.group(2) else 1)


def named_step(path: Path) -> int | None:
    """The step of a checkpoint whose name or JSON file calls it a step.

    None for ``model_3.pt``, which may count epochs, and for Lightning's ``.ckpt``, whose name may count the steps
    of two optimizers.
    """
    if path.suffix == ".ckpt" and path.is_file():
        return None
    stem = path.name if path.is_dir() else _stem(path.name)
    return step_of(path) if _NAMED_STEP.search(stem) or step_in_name(stem) is None else None


def by_epochs(checkpoints: list[Checkpoint], last_step: int | None) -> list[Checkpoint]:
    """The checkpoints; those named by epoch get it as their step if the log counts epochs as well.

    The log does so if its `last_step` is the newest saved epoch, within the distance of two checkpoints.
    """
    epochs = {
        c.path: int(m.group(1))
        for c in checkpoints
        if c.step is None and (m := _EPOCH_NUMBER.search(os.path.basename(c.path)))
    }
    counts = sorted(set(epochs.values()))
    if last_step is None or not counts:
        return checkpoints
    between = max([b - a for a, b in itertools.pairwise(counts)], default=counts[-1] + 1)
    if not counts[-1] - 1 <= last_step <= counts[-1] + between:
        return checkpoints
    placed = [replace(c, step=epochs.get(c.path, c.step)) for c in checkpoints]
    return sorted(placed, key=lambda c: (c.step is None, c.step or 0, c.path))


def _step_in_json(path: Path) -> int | None:
    try:
        if path.stat().st_size > _MAX_JSON:
            return None
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None  # without its state file a checkpoint only lacks its step
    return step_in(content)


def plain_number(value: Any) -> Any:
    """A tensor or numpy scalar as a Python number; anything else unchanged."""
    if getattr(value, "is_meta", False):  # a tensor whose bytes were not read
        return None
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def step_in(content: object, depth: int = 3) -> int | None:
    """The step that a loaded state has under one of the usual keys, also in nested dicts; None if it has none."""
    if depth < 0 or not isinstance(content, dict):
        return None
    if (lightning := _lightning_step(content)) is not None:
        return lightning
    for key in STEP_KEYS:
        value = plain_number(content.get(key))
        if (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        ):
            return int(value)
    for key in (
        "state",
        "trainer_state",
        "train_state",
        "training_state",
        "meta",
        "metadata",
        "progress",
        "client_state",
    ):
        if isinstance(content.get(key), dict) and (nested := step_in(content[key], depth - 1)) is not None:
            return nested
    return None


def _lightning_step(content: dict[Any, Any]) -> int | None:
    """The step of a Lightning checkpoint as its loggers count; `global_step` counts the steps of all optimizers."""
    inner: Any = content if "pytorch-lightning_version" in content else None
    for key in ("loops", "fit_loop", "epoch_loop.state_dict", "_batches_that_stepped"):
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner if isinstance(inner, int) and inner > 0 else None
