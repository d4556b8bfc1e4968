"""How postmortem rebuilds a step of this run: the same objects as in train.py, fresh.

postmortem loads model, optimizer, scheduler and random state from the checkpoint by itself.
"""

import train

import postmortem


def recipe(ctx):
    model, optimizer, scheduler = train.build()
    clips = train.Clips()
    return postmortem.TrainStep(
        model.to(ctx.device),
        optimizer,
        train.compute_loss,
        batches=lambda step: tuple(t.to(ctx.device) for t in clips.batch(step)),
        scheduler=scheduler,
        clip=1.0,
        logged="train/loss",
        first_step=ctx.state["step"] + 1,  # the checkpoint says which step was done last
    )
