"""ReLU units that never fire."""

from __future__ import annotations

from postmortem.silent.faults.dead_relu import DeadRelu
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    import torch.nn.functional as F

    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 1)
            {initialise}

        def forward(self, x):
            return self.last({activation}(self.second({activation}(self.first(x)))))


    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr={rate})
    for step in range(40):
        loss = F.mse_loss(model(x), y{scale})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(initialise: str = "pass", activation: str = "F.relu", rate: float = 0.01, scale: str = "") -> str:
    return LOOP.format(initialise=initialise, activation=activation, rate=rate, scale=scale)


@blamed(DeadRelu, at="constant_")
def negative_biases() -> str:
    return loop("nn.init.constant_(self.first.bias, -8.0)")


@blamed(DeadRelu, at="fill_")
def negative_biases_by_hand() -> str:
    return loop("self.second.bias.data.fill_(-8.0)", activation="torch.relu")


@blamed(DeadRelu, at="optimizer =")
def killed_by_the_first_step() -> str:
    return loop(rate=0.3, scale=" - 20")


LATER = """
    for later in range({steps}):
        if later == {at}:
            with torch.no_grad():
                model.{layer}.bias -= 50
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@blamed(DeadRelu, at="optimizer =")
def killed_far_into_the_training() -> str:
    """Alive at most of the measured steps."""
    return loop() + LATER.format(steps=120, at=20, layer="second")


@blamed(DeadRelu, at="optimizer =")
def killed_after_the_last_measured_step_but_one() -> str:
    """The step after the last one is measured as well."""
    return loop() + LATER.format(steps=120, at=70, layer="second")


@quiet(DeadRelu)
def a_hinge_that_is_reached() -> str:
    """Its values are all 0 once the loss is: nothing is left to learn."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        y = torch.where(torch.rand(64, 12) > 0.5, 1.0, -1.0)
        x = torch.cat([y + 0.1 * torch.randn(64, 12), torch.randn(64, 4)], 1)
        model = nn.Linear(16, 12)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
        for step in range(200):
            i = torch.randperm(64)[:32]
            loss = torch.relu(1 - y[i] * model(x[i])).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """


@quiet(DeadRelu)
def usual_weights() -> str:
    return loop()


@quiet(DeadRelu)
def a_third_is_dead() -> str:
    return loop("nn.init.constant_(self.first.bias[:10], -8.0)")


@quiet(DeadRelu)
def a_narrow_layer_at_the_end() -> str:
    return loop().replace("return self.last(", "return -1 + F.relu(-5 + self.last(").replace("(x)))))", "(x))))))")


@quiet(DeadRelu, status="not checked")
def leaky() -> str:
    return loop("nn.init.constant_(self.first.bias, -8.0)", activation="F.leaky_relu")


@quiet(DeadRelu)
def features_that_are_active_for_few_samples() -> str:
    """In each batch of four most of them are 0; all of them are active now and then."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        words = torch.nn.functional.normalize(torch.randn(256, 32), dim=1)
        encoder, decoder = nn.Linear(32, 256), nn.Linear(256, 32)
        with torch.no_grad():
            encoder.weight.copy_(words)
            encoder.bias.fill_(-0.65)
            decoder.weight.copy_(words.t())
        optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
        for step in range(70):
            x = words[torch.randint(0, 256, (8,))] + words[torch.randint(0, 256, (8,))]
            features = torch.relu(encoder(x))
            loss = (decoder(features) - x).square().mean() + 1e-3 * features.sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """
