"""Units that start equal and stay equal."""

from __future__ import annotations

from postmortem.silent.faults.symmetric_initialisation import SymmetricInitialisation
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, {classes}))
    {initialise}
    optimizer = torch.optim.{optimizer}
    for step in range(12):
        loss = nn.functional.mse_loss(model(x), y.expand(64, {classes}) * torch.arange({classes}))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(*initialise: str, classes: int = 3, optimizer: str = "Adam(model.parameters(), lr=0.01)") -> str:
    return LOOP.format(initialise=("\n" + " " * 4).join(initialise), classes=classes, optimizer=optimizer)


@blamed(SymmetricInitialisation, at="constant_")
def constant_weights() -> str:
    return loop(
        "for layer in (model[0], model[2]):",
        "    nn.init.zeros_(layer.bias)",
        "    nn.init.constant_(layer.weight, 0.05)",
    )


@blamed(SymmetricInitialisation, at="fill_")
def filled_by_hand() -> str:
    return loop("with torch.no_grad():", "    for p in model.parameters():", "        p.fill_(0.1)")


@blamed(SymmetricInitialisation, at="zeros_")
def all_zero() -> str:
    return loop(
        "for layer in (model[0], model[2], model[4]):", "    nn.init.zeros_(layer.weight)", "    layer.bias = None"
    )


@quiet(SymmetricInitialisation)
def the_last_layer_starts_at_zero() -> str:
    return loop("nn.init.zeros_(model[4].weight)")


@quiet(SymmetricInitialisation)
def a_branch_that_starts_at_zero_in_a_warm_up() -> str:
    """In the first steps it has moved little, and no more than that are its rows apart."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
        stem, branch = nn.Linear(4, 16), nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        head = nn.Linear(16, 3)
        for layer in (branch[2], head):
            nn.init.zeros_(layer.weight)
        optimizer = torch.optim.AdamW(nn.ModuleList([stem, branch, head]).parameters(), lr=0.03)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 1e-3 * 1.2**step))
        for step in range(48):
            h = stem(x)
            loss = nn.functional.cross_entropy(head(h + branch(h)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    """


@quiet(SymmetricInitialisation)
def a_table_of_which_few_rows_are_used() -> str:
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        table, head = nn.Embedding(200, 8), nn.Linear(8, 3)
        nn.init.zeros_(table.weight)
        optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
        for step in range(12):
            ids = torch.randint(100, 200, (64,))
            loss = nn.functional.cross_entropy(head(table(ids)), ids % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """


@quiet(SymmetricInitialisation)
def equal_biases() -> str:
    return loop("nn.init.constant_(model[0].bias, 0.1)")


@quiet(SymmetricInitialisation)
def a_frozen_constant_layer() -> str:
    return loop("nn.init.ones_(model[0].weight).requires_grad_(False)")


@quiet(SymmetricInitialisation)
def a_rate_that_starts_at_zero() -> str:
    """The last layer, which starts at 0, has not moved in the first 20 steps."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        nn.init.zeros_(model[2].weight)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, max(0.0, (step - 20) / 20)))
        for step in range(80):
            x = torch.randn(64, 4)
            loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    """
