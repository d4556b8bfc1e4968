"""A training in eval mode."""

from __future__ import annotations

from postmortem.silent.faults.eval_mode_left_on import EvalModeLeftOn
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(240, 4), torch.randint(0, 3, (240,))
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


    def validate():
        model.eval()
        with torch.no_grad():
            print((model(x[200:]).argmax(1) == y[200:]).float().mean())


    {before}
    for epoch in range(4):
        {start}
        for part in torch.arange(200).split(40):
            loss = nn.functional.cross_entropy(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        validate()
"""


def loop(before: str = "pass", start: str = "model.train()") -> str:
    return LOOP.format(before=before, start=start)


@blamed(EvalModeLeftOn, at="model.eval()")
def after_the_first_evaluation() -> str:
    return loop("model.train()", "pass")


@blamed(EvalModeLeftOn, at="model.eval()")
def from_the_start() -> str:
    return loop("validate()", "pass")


PARTS = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(240, 4), torch.randint(0, 3, (240,))
    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    {before}
    body.eval()
    with torch.no_grad():
        features = body(x[:1]).shape[1]


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = body, nn.Linear(features, 3)

        def forward(self, x):
            return self.head(self.body(x))


    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    {after}
    for part in torch.arange(240).split(10):
        loss = nn.functional.cross_entropy(model(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@blamed(EvalModeLeftOn, at="body.eval()")
def a_part_after_a_pass_for_its_size() -> str:
    return PARTS.format(before="pass", after="pass")


@quiet(EvalModeLeftOn)
def a_part_that_is_put_back() -> str:
    return PARTS.format(before="pass", after="model.train()")


@quiet(EvalModeLeftOn)
def a_trained_part_that_keeps_the_statistics_it_has() -> str:
    """Fine-tuning with the statistics of a larger data set."""
    return PARTS.format(before="body(x)", after="pass")


@quiet(EvalModeLeftOn)
def back_to_training_in_each_epoch() -> str:
    return loop("validate()")


@quiet(EvalModeLeftOn)
def batch_norm_alone_keeps_its_statistics() -> str:
    return loop(start="model.train(); model[1].eval()")


@quiet(EvalModeLeftOn)
def a_frozen_body_in_eval_mode() -> str:
    """Its features are what the head is trained on."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        x, y = torch.randn(240, 4), torch.randint(0, 3, (240,))
        body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 16))
        model = nn.Sequential(body, nn.Linear(16, 3))
        body.requires_grad_(False)
        model.eval()
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.05)
        for part in torch.arange(240).split(8):
            loss = nn.functional.cross_entropy(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """


@quiet(EvalModeLeftOn)
def an_attack_in_eval_mode() -> str:
    """The gradient of the input is taken in eval mode; the step follows a pass in training mode."""
    attack = """model.train()
        model.eval()
        seen = x[:40].clone().requires_grad_()
        nn.functional.cross_entropy(model(seen), y[:40]).backward()
        model.train()"""
    return loop(start=attack)
