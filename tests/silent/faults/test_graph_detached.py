"""A tensor cut off the graph."""

from __future__ import annotations

from postmortem.silent.faults.graph_detached import GraphDetached
from tests.silent.faults.cases import blamed, quiet

NET = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 1)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norm, self.head = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)

        def forward(self, x):
            {body}
            return self.head(torch.tanh(self.norm(h)))


    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(12):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def net(*body: str) -> str:
    return NET.format(body=("\n" + " " * 12).join(body))


@blamed(GraphDetached, at=".detach()")
def a_detach_in_the_next_line() -> str:
    return net("h = self.body(x)", "h = h * 2", "h = h.detach()")


@blamed(GraphDetached, at=".data")
def the_data_of_what_a_layer_gave() -> str:
    return net("h = self.body(x).data")


@blamed(GraphDetached, at="with torch.no_grad()")
def a_layer_without_gradients() -> str:
    return net("with torch.no_grad():", "    h = self.body(x)")


@blamed(GraphDetached, at="numpy")
def through_numpy() -> str:
    return net("h = self.body(x)", "h = torch.from_numpy(h.detach().numpy())")


@blamed(GraphDetached, at="@torch.no_grad()")
def a_decorator_of_the_layer() -> str:
    layer = """
    class Body(nn.Linear):
        @torch.no_grad()
        def forward(self, x):
            return super().forward(x)


    class Net("""
    return net("h = self.body(x)").replace("nn.Linear(4, 8)", "Body(4, 8)").replace("\n    class Net(", layer, 1)


@quiet(GraphDetached)
def a_detached_copy_for_a_log() -> str:
    return net("h = self.body(x)", "mean = h.detach().mean().item()")


@quiet(GraphDetached)
def a_target_network() -> str:
    return """
        import copy, torch

        torch.manual_seed(0)
        x = torch.randn(64, 4)
        online = torch.nn.Linear(4, 4)
        target = copy.deepcopy(online)
        optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
        for step in range(12):
            with torch.no_grad():
                goal = target(x) + 1
            loss = (online(x) - goal).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for t, o in zip(target.parameters(), online.parameters()):
                t.data.lerp_(o.data, 0.1)
    """


@quiet(GraphDetached)
def a_gan() -> str:
    """Each network has an optimizer, and the generator's output is detached in the discriminator's turn."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        g, d = nn.Linear(2, 4), nn.Linear(4, 1)
        g_optimizer = torch.optim.Adam(g.parameters())
        d_optimizer = torch.optim.Adam(d.parameters())
        for step in range(12):
            fake = g(torch.randn(8, 2))
            d_optimizer.zero_grad()
            real = nn.functional.softplus(-d(torch.randn(8, 4))).mean()
            loss = real + nn.functional.softplus(d(fake.detach())).mean()
            loss.backward()
            d_optimizer.step()
            g_optimizer.zero_grad()
            nn.functional.softplus(-d(fake)).mean().backward()
            g_optimizer.step()
    """


@quiet(GraphDetached)
def an_average_that_the_optimizer_was_given_too() -> str:
    """Its parameters get no gradient; the program itself moves them."""
    program = net(
        "h = self.body(x)",
        "with torch.no_grad():",
        "    self.far = (h - self.mean(x)).abs().mean()",
        "    for mine, theirs in zip(self.mean.parameters(), self.body.parameters()): mine.lerp_(theirs, 0.1)",
    )
    return program.replace("super().__init__()", "super().__init__(); self.mean = nn.Linear(4, 8)")


GAN = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    g, d = nn.Linear(2, 4), nn.Linear(4, 1)
    g_optimizer = torch.optim.Adam(g.parameters())
    d_optimizer = torch.optim.Adam(d.parameters())
    for step in range(12):
        fake = g(torch.randn(8, 2)).detach()
        d_optimizer.zero_grad()
        real = nn.functional.softplus(-d(torch.randn(8, 4))).mean()
        (real + nn.functional.softplus(d(fake)).mean()).backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        GENERATOR
        g_optimizer.step()
"""


@blamed(GraphDetached, at=".detach()")
def a_generator_whose_loss_gets_the_detached_output() -> str:
    """No backward pass reaches anything that its optimizer holds."""
    return GAN.replace("GENERATOR", "nn.functional.softplus(-d(fake)).mean().backward()")


@quiet(GraphDetached)
def gradients_that_the_program_computes_itself() -> str:
    """An estimate from two calls without gradients, as in an evolution strategy."""
    turn = "\n        ".join(
        (
            "for p in g.parameters():",
            "    p.grad = torch.randn_like(p) * d(fake).mean().detach()",
        )
    )
    return GAN.replace("GENERATOR", turn)
