"""Words for the position of a training: steps, epochs, ranks and times; and words for splits of the data."""

from __future__ import annotations

import re
from functools import lru_cache

from postmortem.core import languages
from postmortem.core.languages import without_accents
from postmortem.core.roles import is_held_out
from postmortem.readers.text.records.record import Trust

HELD_OUT = {
    "val", "valid", "validation", "validate", "validating", "eval", "evaluation", "evaluating", "test", "testing",
    "dev", "held", "heldout", "held-out", "holdout", *languages.HELD_OUT,
}  # fmt: skip
SPLITS = {"train", "training", "trn", *languages.TRAINED, *HELD_OUT}

POSITIONS: dict[str, tuple[str, Trust]] = {}
"""What a word counts, and how far it can be trusted."""
for _field, _level, _names, _of_languages in (
    ("step", Trust.GLOBAL,
     "global_step globalstep global_steps num_updates completed_steps current_steps total_timesteps "
     "optimizer_step optimizer_steps global_iter global_iteration nupdates opt_step gstep glob_step update_step "
     "trainer_global_step training_step env_step env_steps total_train_updates acc_iter accumulated_iter",
     languages.GLOBAL_STEPS),
    ("step", Trust.ITERATION,
     "iteration iterations iter iters itr training_iteration update updates num_iter timestep timesteps",
     languages.ITERATIONS),
    ("step", Trust.STEP,
     "step steps stp train_step training_steps cur_step current_step step_num episode episodes round rounds "
     "generation game tick", languages.STEPS),
    ("step", Trust.LOCAL, "batch batches it i minibatch mb b batch_step", languages.BATCHES),
    ("epoch", Trust.NONE,
     "epoch epochs ep epch sweep sweeps current_epoch cur_epoch epoch_num epoch_idx", languages.EPOCHS),
    ("rank", Trust.NONE, "rank local_rank global_rank worker_rank proc", ()),
    ("time", Trust.NONE, "timestamp _timestamp ts created asctime unix_time", ()),
    ("", Trust.NONE,
     "eta remaining remaining_time elapsed_time percentage progress total_steps max_steps max_epochs num_epochs "
     "total_epochs v_num version pid port seed world_size micro_step line lineno id job_id gpu_id device num_workers "
     "node total_iters eta_seconds percent pct date", ()),
):  # fmt: skip
    for _name in (*_names.split(), *_of_languages):
        POSITIONS[_name] = (_field, _level)
_NOT_A_POSITION = {
    "max", "total", "num", "number", "warmup", "save", "eval", "log", "logging", "per", "every", "each", "of", "n",
    "best", "last", "accum", "accumulation", "grad", "gradient", "skipped", "inner", "time", "patience", "decay",
    "limit", "until",
}  # fmt: skip
# Marian's abbreviations are positions only with the full stop
POSITIONS |= {"up.": ("step", Trust.GLOBAL), "upd.": ("step", Trust.GLOBAL)}
_LAST_WORDS = {
    *("epoch", "ep", "step", "iter", "iteration", "it", "itr", "batch", "num_updates", "episode"),
    *(*languages.STEPS, *languages.ITERATIONS, *languages.BATCHES, *languages.EPOCHS),
}
"""Words that mean a position also after words of `_WITH_A_POSITION`."""
_NUMBERED = {"epoch", "ep", "step", "iter", "iteration", "batch", "minibatch", "round", "episode"}
_NUMBER_WORDS = {"id", "idx", "index", "no", "nr", "num", "number"}
"""Words behind one of a position that only say that it is a number: "epoch id", "batch_idx"."""
_WITH_A_POSITION = SPLITS | {
    "learning",
    "current",
    "cur",
    "curr",
    "global",
    "trainer",
    "this",
    "at",
    "after",
    "on",
    "in",
    "results",
    "result",
    "metrics",
    "completed",
    "finished",
    "end",
    "beginning",
    "outer",
}


@lru_cache(maxsize=65_536)
def position(name: str) -> tuple[str, Trust] | None:
    """The position that a name means: (field, trust), ("", Trust.NONE) for other words that are no metric.

    None if the name is one of a metric.
    """
    if name[-1:] == "." and (found := POSITIONS.get(name.lower())) is not None:
        return found
    words = without_accents(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    key = re.sub(r"[^\w]+", "_", words).strip("_")
    found = POSITIONS.get(key)
    if found is None and "_" in key:
        first, _, last = key.rpartition("_")
        others = set(first.split("_"))
        told = bool(others & {"at", "after"} and first.split("_")[0] in HELD_OUT)  # "eval metrics after step: 49"
        if last in _LAST_WORDS and (told or not others & _NOT_A_POSITION) and "/" not in name:
            known = told or others <= _WITH_A_POSITION
            found = POSITIONS[last] if known or (" " in name and POSITIONS[last][0] == "epoch") else None
        elif first in _NUMBERED and last in _NUMBER_WORDS:
            found = POSITIONS[first]
        elif key.endswith("num_updates"):
            found = POSITIONS["num_updates"]
        elif key.endswith("_global_step") or key == "trainer_global_step":
            found = POSITIONS["global_step"]
    return found


def is_of_held_out(name: str) -> bool:
    """Whether one of the words of a name is one for held-out data ("Evaluating iter", "val_batch")."""
    return not HELD_OUT.isdisjoint(re.split(r"[\W_]+", name.lower())) or is_held_out(name)
