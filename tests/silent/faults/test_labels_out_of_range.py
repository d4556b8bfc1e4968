"""Targets that the loss is not defined for."""

from __future__ import annotations

from postmortem.silent.faults.labels_out_of_range import LabelsOutOfRange
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    x = torch.randn(240, 4)
    positive = x[:, :1] > 0
    y = {target}
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr={lr})
    for part in torch.arange(240).split(8):
        optimizer.zero_grad()
        logits = model(x[part])
        loss = {loss}
        loss.backward()
        optimizer.step()
"""
BCE = "F.binary_cross_entropy_with_logits(logits, y[part])"
EACH = "F.binary_cross_entropy_with_logits(logits, y[part], reduction='none')"


def loop(target: str, loss: str = BCE, lr: float = 0.01) -> str:
    return LOOP.format(target=target, loss=loss, lr=lr)


@blamed(LabelsOutOfRange, at="loss = ")
def a_mask_of_0_and_255() -> str:
    return loop("positive * 255.0", lr=1e-4)


@blamed(LabelsOutOfRange, at="loss = ")
def classes_1_and_2() -> str:
    return loop("positive.float() + 1", "nn.BCEWithLogitsLoss()(logits, y[part])")


@blamed(LabelsOutOfRange, at="loss = ")
def signs() -> str:
    return loop("positive * 2.0 - 1")


@blamed(LabelsOutOfRange, at="loss = ")
def unlabelled_elements_that_count() -> str:
    """The mask is that of the positive ones."""
    return loop("torch.where(torch.rand(240, 1) < 0.2, 255.0, positive.float())", f"({EACH} * (y[part] > 0)).mean()")


@blamed(LabelsOutOfRange, at="loss = ")
def no_signs_for_a_loss_of_signs() -> str:
    return loop("positive.float()", "F.soft_margin_loss(logits, y[part])", 0.1)


@quiet(LabelsOutOfRange)
def smoothed_labels() -> str:
    return loop("positive * 0.8 + 0.1")


@quiet(LabelsOutOfRange)
def noisy_labels() -> str:
    """As for the discriminator of a GAN."""
    return loop("torch.where(positive, 0.7 + 0.5 * torch.rand(240, 1), 0.3 * torch.rand(240, 1))", lr=0.05)


IGNORED = "torch.where(torch.rand(240, 1) < 0.2, 255.0, positive.float())"


@quiet(LabelsOutOfRange)
def a_mask_over_ignored_elements() -> str:
    """As in a focal loss."""
    focal = f"({EACH} * (1 - logits.sigmoid()).square().detach() * (y[part] != 255)).sum() / 8"
    return loop(IGNORED, focal, 0.1)


@quiet(LabelsOutOfRange)
def ignored_elements_are_left_out_by_an_index() -> str:
    return loop(IGNORED, f"{EACH}[y[part] != 255].mean()", 0.1)


@quiet(LabelsOutOfRange)
def ignored_elements_have_a_weight_of_0() -> str:
    return loop(IGNORED, "F.binary_cross_entropy_with_logits(logits, y[part], (y[part] != 255).float())", 0.1)


@quiet(LabelsOutOfRange)
def signs_with_pairs_that_are_left_out() -> str:
    return loop("(positive * 2.0 - 1) * (torch.rand(240, 1) < 0.8)", "F.soft_margin_loss(logits, y[part])", 0.1)


@quiet(LabelsOutOfRange, status="not checked")
def a_loss_that_is_only_printed() -> str:
    return loop("positive.float()", "F.mse_loss(logits, y[part]) + 0 * F.soft_margin_loss(logits, y[part]).detach()")
