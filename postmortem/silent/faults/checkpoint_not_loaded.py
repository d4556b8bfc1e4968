from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.silent.faults import BaseFault, fault
from postmortem.silent.faults._words import count
from postmortem.silent.weight_facts import Loaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.blame import Blame
    from postmortem.silent.look import Look

_NEARLY = 0.1


@fault
class CheckpointNotLoaded(BaseFault):
    """`load_state_dict(strict=False)` matched nothing, or nearly nothing, and did not say so: the training starts from
    scratch.

    How it is found: of the elements in the state and of those in the module, less than 10 % belong to a name that both
    have; or the state that is loaded before the first step consists of the module's own tensors, as it does where none
    of the checkpoint's names was taken over into `model.state_dict()`.

    Not blamed: a backbone or an adapter that is loaded as a whole, whatever else is in the module or in the file; a
    module into which another call loads what fits.

    What to do: make the names agree (a prefix such as `module.`), and look at the `missing_keys` and `unexpected_keys`
    that `load_state_dict` returns.

    How to confirm: print what `load_state_dict` returns.
    """

    code = "TRN064"
    name = "checkpoint-not-loaded"
    family = "weights"
    checks = "what is loaded fits the module"

    def blames(self, look: Look) -> Iterator[Blame]:
        for loaded in look.of(Loaded):
            nothing = not loaded.strict and loaded.own and loaded.matched < _NEARLY * min(loaded.own, loaded.given)
            itself = loaded.step == 0 and loaded.matched and loaded.alias == loaded.matched
            others = [x for x in look.of(Loaded) if x.module == loaded.module and x is not loaded]
            if not (nothing or itself) or any(o.matched > 0.5 * min(o.own, o.given) and not o.alias for o in others):
                continue
            given, own = loaded.names
            names = f": {given!r} is not in the module, {own!r} not in the state" if given and own else ""
            what = (
                f"{loaded.matched} of {count(loaded.given, 'element')} in the state and of {loaded.own} in "
                f"{loaded.module} have a name that fits{names}"
                if nothing
                else f"the state that is loaded into {loaded.module} is made of its own tensors, so nothing changes"
            )
            yield self.blame(
                loaded.at,
                what,
                confirm="print what load_state_dict returns (missing_keys, unexpected_keys)",
                matched=loaded.matched,
                given=loaded.given,
                own=loaded.own,
            )
