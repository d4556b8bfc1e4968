"""The draft for Lightning: its module makes the optimizers, its training step the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.replay.scaffold.text import MOVE, SET_SEED, head, seed_line, seeding, to_fill_in

if TYPE_CHECKING:
    from postmortem.replay.scaffold.layout import Layout
    from postmortem.replay.scaffold.script import Script

_BODY = '''

def optimizer_and_schedulers(configured):
    """What configure_optimizers may return: an optimizer, a dict, or two lists."""
    if isinstance(configured, dict):
        configured = [configured["optimizer"]], [configured[k] for k in ("lr_scheduler",) if k in configured]
    optimizers, schedulers = configured if isinstance(configured, tuple) else (configured, [])
    optimizer = optimizers[0] if isinstance(optimizers, (list, tuple)) else optimizers
    return optimizer, [s["scheduler"] if isinstance(s, dict) else s for s in schedulers] or None


def endless(loader, first):
    """The batches from number `first` on. A loader that shuffles gives them in another order: the fidelity says so."""
    while True:
        for index, batch in enumerate(loader):
            if index >= first:
                yield batch
        first = max(0, first - len(loader))


def recipe(ctx):
    {seed}module = {module}
    module.to(ctx.device)
    optimizer, scheduler = optimizer_and_schedulers(module.configure_optimizers())
    done = ctx.state["global_step"] if ctx.state else 0
    return postmortem.TrainStep(
        module,
        optimizer,
        lambda module, batch: loss_of(module.training_step(batch{index})),
        batches=(to_device(batch, ctx.device) for batch in endless({loader}, done)),
        scheduler=scheduler,
    )


def loss_of(output):
    return output["loss"] if isinstance(output, dict) else output
'''


_OF_DATA = """

def of_data_module():
    data = {made}
    data.prepare_data()
    data.setup("fit")
    return data.train_dataloader()
"""


def draft(layout: Layout, script: Script) -> str:
    """The text of the recipe."""
    modules = script.classes(("LightningModule",))
    module = modules[0] if len(modules) == 1 else None
    data = script.classes(("LightningDataModule",))
    methods = script.methods(module) if module else {}
    known = layout.content.get("hyper_parameters") or {}
    made = (
        f"{script.name}.{module}(**(ctx.state or {{}}).get('hyper_parameters', {{}}))"
        if known
        else f"{script.name}.{module}()"
    )
    if module and not set(methods.get("__init__", [])) <= set(known):
        module = None
    loader = None
    if module and "train_dataloader" in methods:
        loader = "module.train_dataloader()"
    elif len(data) == 1 and not script.arguments(data[0]):
        loader = "of_data_module()"
    missing = [] if module else ["build_module"]
    missing += [] if loader else ["train_dataloader"]
    seed = seeding(layout, script)
    missing += ["set_seed"] if seed is None else []
    texts = {
        "build_module": (
            "ctx",
            "return the LightningModule, newly initialized; ctx.state['hyper_parameters'] if it saves them",
        ),
        "train_dataloader": ("", "return the DataLoader of the training, without shuffling if it can be"),
        "set_seed": SET_SEED,
    }
    of_data = _OF_DATA.format(made=f"{script.name}.{data[0]}()") if loader == "of_data_module()" else ""
    imports = ["import torch"] if seed else []
    imports += [f"import {script.name}"] if module or of_data else []
    index = "" if module and len(methods.get("training_step", [])) == 1 else ", 0"
    body = _BODY.replace("{module}", made if module else "build_module(ctx)").replace("{index}", index)
    body = body.replace("{seed}", seed_line(seed))
    return (
        head("Lightning", layout, imports, missing)
        + "".join(to_fill_in(name, *texts[name]) for name in missing)
        + of_data
        + MOVE
        + body.replace("{loader}", loader or "train_dataloader()")
    )
