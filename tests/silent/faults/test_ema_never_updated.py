"""An average that stays what it was."""

from __future__ import annotations

import inspect

from postmortem.silent.faults.ema_never_updated import EmaNeverUpdated
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import copy
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.randn(64, 1)


    def update_ema(average, model, decay=0.9):
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                {update}


    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    {name} = {make}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(40):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {call}
    with torch.no_grad():
        print(nn.functional.mse_loss({name}(x), y))
"""
COPY = "copy.deepcopy(model)"


def loop(update: str, *, name: str = "ema", make: str = COPY, call: str = "update_ema(ema, model)") -> str:
    return LOOP.format(update=update, name=name, make=make, call=call)


@blamed(EmaNeverUpdated, at="a = decay * a")
def a_new_tensor_instead_of_an_update() -> str:
    return loop("a = decay * a + (1 - decay) * p")


@blamed(EmaNeverUpdated, at="a.lerp_")
def the_update_is_never_called() -> str:
    return loop("a.lerp_(p, 1 - decay)", call="pass")


@blamed(EmaNeverUpdated, at="a.data = decay")
def a_decay_of_one() -> str:
    return loop("a.data = decay * a + (1 - decay) * p", call="update_ema(ema, model, 1.0)")


CALLBACK = """
    class Averaging:
        def begin(self, model):
            self.shadow = copy.deepcopy(model)

        def after_batch(self, model):
            for kept, live in zip(self.shadow.parameters(), model.parameters()):
                kept = 0.9 * kept + 0.1 * live


    callback = Averaging()
    callback.begin(model)
"""


@blamed(EmaNeverUpdated, at="kept = 0.9 * kept")
def in_a_callback() -> str:
    """Whose methods have the names of hooks."""
    made = inspect.cleandoc(CALLBACK).replace("\n", "\n    ")
    return (
        loop("pass", name="shadow", make="None", call="callback.after_batch(model)")
        .replace("shadow = None", made)
        .replace("shadow(x)", "callback.shadow(x)")
    )


@quiet(EmaNeverUpdated)
def updated_in_place() -> str:
    return loop("a.lerp_(p, 1 - decay)")


@quiet(EmaNeverUpdated)
def updated_by_a_new_tensor() -> str:
    return loop("a.data = decay * a + (1 - decay) * p")


@quiet(EmaNeverUpdated)
def a_teacher_that_stays() -> str:
    return loop("pass", name="teacher", call="pass")


@quiet(EmaNeverUpdated)
def a_copy_for_a_swap() -> str:
    return loop("pass", name="swapped", call="pass")


@quiet(EmaNeverUpdated)
def of_torch() -> str:
    return loop("pass", make="torch.optim.swa_utils.AveragedModel(model)", call="ema.update_parameters(model)")
