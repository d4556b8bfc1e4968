from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent import model_changes
from postmortem.silent.faults import BaseFault, _seen, fault
from postmortem.silent.faults._words import count
from postmortem.silent.trials import Trial
from postmortem.silent.weight_facts import Loaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_NEARLY = 0.1


@fault
class CheckpointNotLoaded(BaseFault):
    """`load_state_dict(strict=False)` matched no or almost no parameters and raised no error: training starts from
    scratch.

    How it is found: less than 10 % of the elements in the state dict, and less than 10 % of those in the module, have a
    name that exists in both. Or the state dict that is loaded before the first step consists of the module's own
    tensors, as happens when none of the checkpoint's names were copied into `model.state_dict()`.

    Not blamed: a backbone or an adapter that is loaded completely, whatever else the module or the file contains; a
    module for which another call loads matching weights; a state dict into whose tensors values were copied.

    What to do: make the names match (a prefix such as `module.` is a common difference), and check the `missing_keys`
    and `unexpected_keys` that `load_state_dict` returns.

    How to confirm: print what `load_state_dict` returns.
    """

    code = "TRN064"
    name = "checkpoint-not-loaded"
    family = "weights"
    checks = "loaded state dicts match the module"
    trial = Trial("weights loaded by the ends of their names", model_changes.loaded_by_ending)

    def seen(self, look: Look) -> str:
        return _seen.of(look, Loaded, "state dict that was loaded", "state dicts that were loaded")

    def blames(self, look: Look) -> Iterator[Blame]:
        for loaded in look.of(Loaded):
            nothing = not loaded.strict and loaded.own and loaded.matched < _NEARLY * min(loaded.own, loaded.given)
            itself = loaded.step == 0 and loaded.matched and loaded.alias == loaded.matched
            others = [x for x in look.of(Loaded) if x.module == loaded.module and x is not loaded]
            if not (nothing or itself) or any(o.matched > 0.5 * min(o.own, o.given) and not o.alias for o in others):
                continue
            given, own = loaded.names
            names = f": {given!r} is not in the module, {own!r} not in the state dict" if given and own else ""
            what = (
                f"{loaded.matched} of {count(loaded.given, 'element')} in the state dict and of {loaded.own} in "
                f"{loaded.module} have a matching name{names}"
                if nothing
                else f"the state dict loaded into {loaded.module} consists of its own tensors, so nothing changes"
            )
            yield self.blame(
                loaded.at,
                what,
                confirm="print what load_state_dict returns (missing_keys, unexpected_keys)",
                matched=loaded.matched,
                given=loaded.given,
                own=loaded.own,
            )
