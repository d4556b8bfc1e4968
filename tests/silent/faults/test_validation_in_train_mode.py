"""An evaluation in training mode."""

from __future__ import annotations

from postmortem.silent.faults.validation_in_train_mode import ValidationInTrainMode
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    x, y = torch.randn(240, 4), torch.randint(0, 3, (240,))


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norm, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

        def forward(self, x):
            h = torch.relu(self.norm(self.body(x)))
            return self.head({dropout})


    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range({epochs}):
        model.train()
        for part in torch.arange(200).split({batch}):
            loss = F.cross_entropy(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        {evaluation}
"""
OFF = "F.dropout(h, 0.2, self.training)"


def loop(*evaluation: str, dropout: str = OFF, epochs: int = 4, batch: int = 40) -> str:
    return LOOP.format(evaluation=("\n" + " " * 8).join(evaluation), dropout=dropout, epochs=epochs, batch=batch)


@blamed(ValidationInTrainMode, at="out = model")
def nobody_calls_eval() -> str:
    return loop("with torch.no_grad():", "    out = model(x[200:])", "print((out.argmax(1) == y[200:]).float().mean())")


@blamed(ValidationInTrainMode, at="out = model")
def an_evaluation_between_looks() -> str:
    """The first one comes after 100 steps."""
    evaluation = ("with torch.inference_mode():", "    out = model(x[200:])", "    F.cross_entropy(out, y[200:])")
    return loop(*evaluation, epochs=3, batch=2)


@blamed(ValidationInTrainMode, at="out = model")
def with_gradients() -> str:
    return loop("out = model(x[200:])", "print(F.cross_entropy(out, y[200:]).item(), out.argmax(1).eq(y[200:]).sum())")


@blamed(ValidationInTrainMode, at="return self.head")
def a_dropout_function_that_does_not_know_the_mode() -> str:
    evaluation = ("model.eval()", "with torch.no_grad():", "    print(F.cross_entropy(model(x[200:]), y[200:]))")
    return loop(*evaluation, dropout="F.dropout(h, 0.2)")


@quiet(ValidationInTrainMode)
def in_eval_mode() -> str:
    return loop("model.eval()", "with torch.no_grad():", "    print(F.cross_entropy(model(x[200:]), y[200:]))")


@quiet(ValidationInTrainMode)
def several_passes_over_one_input() -> str:
    """Dropout as a measure of uncertainty."""
    return loop(
        "with torch.no_grad():",
        "    outs = torch.stack([model(x[200:]) for _ in range(8)])",
        "print(outs.var(0).mean(), (outs.mean(0).argmax(1) == y[200:]).float().mean())",
    )


@quiet(ValidationInTrainMode)
def new_statistics_for_batch_norm() -> str:
    """Then the evaluation, in eval mode."""
    return loop(
        "with torch.no_grad():",
        "    for part in torch.arange(200).split(40): model(x[part])",
        "model.eval()",
        "with torch.no_grad():",
        "    print((model(x[200:]).argmax(1) == y[200:]).float().mean())",
    )


@quiet(ValidationInTrainMode)
def samples_of_a_generator() -> str:
    return loop("with torch.no_grad():", "    picture = model(x[200:]).clamp(0, 1)", "print(picture.shape)")


@quiet(ValidationInTrainMode)
def labels_of_the_models_own_in_each_step() -> str:
    own = """for part in torch.arange(200).split(40):
            with torch.no_grad():
                guess = model(x[part]).argmax(1)
            loss = F.cross_entropy(model(x[part] + 0.1), guess)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()"""
    return loop(own)


@quiet(ValidationInTrainMode)
def actions_of_a_policy() -> str:
    """What is drawn from the output is what is trained on."""
    return loop(
        "with torch.no_grad():",
        "    action = torch.distributions.Categorical(logits=model(x[200:])).sample()",
        "reward = (action == y[200:]).float() - 0.5",
    )
