"""The draft for a plain loop: model, optimizer, scheduler, loss and batches from the script or the checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.replay.scaffold.text import MOVE, SET_SEED, head, seed_line, seeding, to_fill_in

if TYPE_CHECKING:
    from postmortem.replay.scaffold.layout import Layout
    from postmortem.replay.scaffold.script import Script

_BODY = """

def recipe(ctx):
    {seed}made = {model}
    made = made if isinstance(made, tuple) else (made,)
    model = next(m for m in made if isinstance(m, torch.nn.Module)).to(ctx.device)
    optimizer = next((o for o in made if isinstance(o, torch.optim.Optimizer)), None) or {optimizer}
    scheduler = next((s for s in made if isinstance(s, torch.optim.lr_scheduler.LRScheduler)), None) or {scheduler}
    return postmortem.TrainStep(
        model,
        optimizer,
        {loss},
        batches=lambda step: to_device({batch}(step), ctx.device),
        scheduler=scheduler,
        clip={clip},  # max_norm of clip_grad_norm_
    )
"""


def draft(layout: Layout, script: Script) -> str:
    """The text of the recipe."""
    model, loss, batch = script.builder(), script.loss(), script.batch()
    optimizer, scheduler = layout.optimizer(), layout.scheduler()
    seed, more = seeding(layout, script), script.builds_more()
    gaps = {
        "set_seed": (*SET_SEED, seed),
        "build_model": ("", f"return the model, newly initialized{_from(script)}", model),
        "build_optimizer": ("model", "return the optimizer, as the script makes it", optimizer or more or None),
        "build_scheduler": ("optimizer", "return the scheduler, or None", scheduler or more or None),
        "compute_loss": ("model, batch", f"return the loss of one batch{_from(script)}", loss),
        "batch_of": ("step", "return the batch of that step, numbered as in the log", batch),
    }
    missing = [name for name, (_, _, known) in gaps.items() if known is None]
    imports = ["import torch", *([f"import {script.name}"] if any((model, loss, batch)) else [])]
    return (
        head("plain loop", layout, imports, missing)
        + "".join(to_fill_in(name, gaps[name][0], gaps[name][1]) for name in missing)
        + MOVE
        + _BODY.format(
            seed=seed_line(seed),
            model=model or "build_model()",
            optimizer=optimizer or ("None" if more else "build_optimizer(model)"),
            scheduler=scheduler or ("None" if more else "build_scheduler(optimizer)"),
            loss=loss or "compute_loss",
            batch=batch or "batch_of",
            clip=script.clip(),
        )
    )


def _from(script: Script) -> str:
    if script.path is None:
        return ""
    why = "" if script.importable else ", which starts to train when it is imported"
    return f" (see {script.path.name}{why})"
