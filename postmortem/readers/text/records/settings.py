"""The settings that a training prints before its first step: a Namespace, a dict, ``name: value`` once or more a line.

Only lines before the first step count, and of free text only names that nothing but a setting has: a sentence that
holds a number is no setting.
"""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# fmt: off
_KNOWN = frozenset((
    "lr", "learning_rate", "base_lr", "max_lr", "min_lr", "initial_lr", "init_lr", "peak_lr", "batch_size",
    "train_batch_size", "eval_batch_size", "per_device_train_batch_size", "per_device_eval_batch_size",
    "micro_batch_size", "global_batch_size", "mini_batch_size", "epochs", "num_epochs", "n_epochs", "max_epochs",
    "num_train_epochs", "total_epochs", "max_steps", "total_steps", "num_steps", "num_train_steps", "max_iters",
    "train_iters", "max_train_steps", "num_iterations", "seed", "random_seed", "weight_decay", "momentum",
    "optimizer", "optim", "scheduler", "lr_scheduler", "lr_scheduler_type", "warmup", "warmup_steps",
    "warmup_epochs", "warmup_ratio", "dropout", "grad_clip", "clip_grad", "clip_grad_norm", "max_grad_norm",
    "gradient_clip_val", "gradient_accumulation_steps", "grad_accum_steps", "accumulate_grad_batches",
    "accumulation_steps", "num_workers", "precision", "mixed_precision", "amp", "use_amp", "fp16", "bf16", "dtype",
    "model", "model_name", "model_type", "arch", "architecture", "dataset", "data_dir", "hidden_size", "hidden_dim",
    "num_layers", "n_layers", "num_classes", "n_classes", "vocab_size", "embed_dim", "label_smoothing", "beta1",
    "beta2", "betas", "eps", "adam_epsilon",
))
# fmt: on
"""Names of settings, in small letters with underscores."""
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_NAME = r"[A-Za-z][\w.\-]*(?: [A-Za-z][\w.\-]*){0,3}"
_CALL = re.compile(r"\b\w*(?:Namespace|Args|Arguments|Config|Configuration|Options|Settings|HParams|Hparams|Params)\(")
_PAIR = re.compile(
    rf"\s*(?:--)?(?P<name>{_NAME})(?:\s*[:=]\s*|\s*\.{{3,}}\s*|\s{{2,}}|\t)(?P<value>\S.{{0,200}}?)\s*,?"
)
_IN_TEXT = re.compile(
    rf"(?<![\w./-])(?P<name>learning[ _-]rate|lr|(?:mini|micro)?-?batch[ _-]?size|weight[ _-]decay|(?:random )?seed)"
    rf"(?:\s*(?:=|:|\bof\b|\bis\b)\s*|\s+)(?P<value>{_NUMBER})(?![\w%/]|\.\d)",
    re.IGNORECASE,
)
_BLOCK = 3  # lines of a name and a value that follow each other, of which some are known, are settings
_LONGEST = 1 << 16  # characters of a Namespace or a dict
_ASSIGNED = re.compile(r"-{0,2}[A-Za-z][\w.\-]*=[^\s=]+")
_PARTS = re.compile(r"[,;|]\s+")


def settings_in(lines: Sequence[str]) -> dict[str, Any]:
    """The settings in these lines, from which the prefix of a logger is taken off; what is printed later counts."""
    found: dict[str, Any] = {}
    block: dict[str, Any] = {}
    at, rows = 0, 0
    while at < len(lines):
        line = lines[at]
        pair = _PAIR.fullmatch(line)
        whole, used = _spanning(lines, at)
        if pair is not None and not used and not _several(line) and not pair["value"].endswith(("(", "{", "[", "<")):
            block[_key(pair["name"])] = _value(pair["value"])
            rows += 1
            at += 1
            continue
        if line.strip():
            found |= _of_block(block, rows)
            block, rows = {}, 0
        found |= whole if used else _in_text(line)
        at += max(1, used)
    return found | _of_block(block, rows)


def _of_block(block: dict[str, Any], rows: int) -> dict[str, Any]:
    """All pairs of several lines, if two of them are known; of fewer lines those that are known."""
    known = {name: value for name, value in block.items() if _plain(name) in _KNOWN}
    return block if rows >= _BLOCK and len(known) >= 2 else known


def _in_text(line: str) -> dict[str, Any]:
    """Of a line of other form: its pairs, else what is clear in a sentence."""
    return _several(line) or {_key(m["name"]): _value(m["value"]) for m in _IN_TEXT.finditer(line)}


def _several(line: str) -> dict[str, Any]:
    """The pairs of a line, if it is nothing but several, and one of them is known; else {}."""
    tokens = line.split()
    assigned = all(_ASSIGNED.fullmatch(token) for token in tokens)
    parts = tokens if assigned else [part.rstrip() for part in _PARTS.split(line.strip())]
    pairs = [_PAIR.fullmatch(part) or _IN_TEXT.fullmatch(part) for part in parts] if len(parts) > 1 else []
    found = {_key(m["name"]): _value(m["value"]) for m in pairs if m is not None}
    return found if len(found) == len(parts) and any(_plain(name) in _KNOWN for name in found) else {}


def _spanning(lines: Sequence[str], at: int) -> tuple[dict[str, Any], int]:
    """The settings of a Namespace or a dict that begins in the line `at`, and how many lines it takes; 0: none does."""
    line = lines[at]
    call = _CALL.search(line)
    start = call.end() - 1 if call else line.find("{")
    if start < 0:
        return {}, 0
    text, depth = "", 0
    for used, more in enumerate(lines[at:], 1):
        part = more[start:] if used == 1 else more
        text += part + "\n"
        depth += sum(map(part.count, "([{")) - sum(map(part.count, ")]}"))
        if depth <= 0 or len(text) > _LONGEST:
            break
    end = text.rfind(")" if call else "}")
    if depth > 0 or end < 0:
        return {}, 0
    inside = text[: end + 1]
    found = _keywords(inside[1:-1]) if call else _mapping(inside)
    if call is None and not any(_plain(str(name)) in _KNOWN for name in found):
        return {}, 0
    return found, used if found else 0


def _keywords(text: str) -> dict[str, Any]:
    """Of the arguments of a call: name -> value, where both are plain."""
    found, depth, start = {}, 0, 0
    quote = ""
    for i, char in enumerate(text + ","):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth <= 0:
            name, is_pair, value = text[start:i].partition("=")
            if is_pair and name.strip().isidentifier():
                found[name.strip()] = _value(value)
            start = i + 1
    return found


def _mapping(text: str) -> dict[str, Any]:
    """A dict as Python or JSON writes it; {} if it is neither."""
    for parse in (ast.literal_eval, json.loads):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return {str(k): v for k, v in found.items()} if isinstance(found, dict) else {}
    return {}


def _key(name: str) -> str:
    """The name as a setting is called: ``batch size`` is ``batch_size``."""
    return re.sub(r"[ -]+", "_", name.strip())


def _plain(name: str) -> str:
    return _key(name).lower().rsplit(".", 1)[-1]


def _value(text: str) -> Any:
    text = text.strip().rstrip(",")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {"true": True, "false": False, "null": None, "none": None}.get(text.lower(), text.strip("'\""))
