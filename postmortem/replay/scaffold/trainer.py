"""The draft for transformers' Trainer: a Trainer of the same arguments makes optimizer, scheduler, batches and loss."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from postmortem.replay.scaffold.text import head, to_fill_in

if TYPE_CHECKING:
    from postmortem.replay.scaffold.layout import Layout

_ARGUMENTS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "weight_decay", "adam_beta1"),
    *("adam_beta2", "adam_epsilon", "max_grad_norm", "lr_scheduler_type", "warmup_ratio", "warmup_steps", "optim"),
    *("seed", "data_seed", "num_train_epochs", "max_steps", "bf16", "fp16", "label_smoothing_factor"),
    *("group_by_length", "dataloader_drop_last", "remove_unused_columns"),
)
_BODY = '''

def batches(trainer, done):
    """The batches from optimizer step `done` on, in the Trainer's order.

    An epoch that had begun is begun here at once: that draws random numbers, which the training had drawn before it
    saved the checkpoint.
    """
    loader, k = trainer.get_train_dataloader(), trainer.args.gradient_accumulation_steps
    epoch, skip = divmod(done * k, len(loader))
    loader.set_epoch(epoch)
    begun = iter(loader) if skip else None
    for _ in range(skip):
        next(begun)
    return groups(trainer, loader, epoch, begun, k)


def groups(trainer, loader, epoch, begun, k):
    """A batch is the inputs, with the number of labels by which the Trainer divides the loss of an update."""
    while True:
        loader.set_epoch(epoch)
        source = iter(begun or loader)
        while group := trainer.get_batch_samples(source, k, trainer.args.device):
            if not group[0]:
                break
            made = [{"inputs": trainer._prepare_inputs(inputs), "items": group[1]} for inputs in group[0]]
            yield made if k > 1 else made[0]
        epoch, begun = epoch + 1, None


def loss_of(trainer, model, batch):
    loss = trainer.compute_loss(model, batch["inputs"], num_items_in_batch=batch["items"])
    return loss if batch["items"] is None else loss * trainer.args.gradient_accumulation_steps


def recipe(ctx):
    state = json.loads((ctx.checkpoint / "trainer_state.json").read_text())
    model = {model}
    # args = torch.load(ctx.checkpoint / "training_args.bin", weights_only=False) has them all, if you trust that file
    args = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(), report_to="none", use_cpu=ctx.device.type == "cpu",{arguments}
    )
    trainer = transformers.Trainer(model, args, train_dataset=train_dataset(), data_collator=data_collator())
    trainer.create_optimizer_and_scheduler(state["max_steps"])
    return postmortem.TrainStep(
        model.to(ctx.device),
        trainer.optimizer,
        lambda model, batch: loss_of(trainer, model, batch),
        batches=batches(trainer, state["global_step"]),
        scheduler=trainer.lr_scheduler,
        accumulate=args.gradient_accumulation_steps,
        clip=args.max_grad_norm or None,
        autocast="bf16" if args.bf16 else "fp16" if args.fp16 else None,
        scaler=args.fp16,
        first_step=state["global_step"] + 1,
        logged={tag},
        shared=("items",),
    )


def data_collator():
    """What Trainer got as data_collator; None is its default."""
    return None
'''


def draft(layout: Layout, config: dict[str, Any], tag: str | None) -> str:
    """The text of the recipe; `tag` is that of the loss, of which the log also has a mean of the whole training."""
    state, own = (_json(layout, name) for name in ("trainer_state.json", "config.json"))
    known = {name: config[name] for name in _ARGUMENTS if isinstance(config.get(name), (str, int, float))}
    known = {"per_device_train_batch_size": state.get("train_batch_size"), "max_steps": state.get("max_steps")} | known
    shown = "".join(f"\n        {name}={value!r}," for name, value in known.items() if value is not None)
    names = own.get("architectures") or []
    missing = ["train_dataset"]
    model = "build_model()"
    if len(names) == 1 and isinstance(names[0], str) and names[0].isidentifier() and own.get("model_type"):
        model = f"transformers.{names[0]}(transformers.AutoConfig.from_pretrained(ctx.checkpoint))"
    else:
        missing = ["build_model", *missing]
    texts = {
        "build_model": "return the model, newly initialized",
        "train_dataset": "return what Trainer got as train_dataset",
    }
    imports = ["import json", "import tempfile", "", "import transformers"]
    return (
        head("transformers Trainer", layout, imports, missing)
        + "".join(to_fill_in(name, "", texts[name]) for name in missing)
        + _BODY.replace("{model}", model).replace("{arguments}", shown).replace("{tag}", repr(tag))
    )


def _json(layout: Layout, name: str) -> dict[str, Any]:
    assert layout.path is not None  # as `Layout.is_trainer` says
    try:
        content = json.loads((layout.path / name).read_text("utf-8"))
    except (OSError, ValueError):
        return {}  # then it is left to fill in
    return content if isinstance(content, dict) else {}
