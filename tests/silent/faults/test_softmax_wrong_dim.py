"""A softmax over the batch."""

from __future__ import annotations

from postmortem.silent.faults.softmax_wrong_dim import SoftmaxWrongDim
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    x, y = torch.randn(236, 5, 4), torch.randint(0, 3, (236,))


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.body, self.head = nn.Linear(4, 1), nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            score = self.score(x).squeeze(-1)
            {weight}
            return self.head(torch.tanh((weight.unsqueeze(-1) * self.body(x)).sum(1)))


    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in torch.arange(236).split(8):
        optimizer.zero_grad()
        {loss}
        loss.backward()
        optimizer.step()
"""
LOSS = "loss = F.cross_entropy(model(x[part]), y[part])"


def loop(weight: str = "weight = F.softmax(score, dim=1)", loss: str = LOSS) -> str:
    return LOOP.format(weight=weight, loss=loss)


@blamed(SoftmaxWrongDim, at="weight = ")
def attention_over_the_batch() -> str:
    return loop("weight = torch.softmax(score, dim=0)")


@blamed(SoftmaxWrongDim, at="weight = ")
def batches_of_one_in_the_evaluation() -> str:
    """A softmax over one sample has the shape [1, instances, 1], of which two dimensions are equal."""
    program = loop("weight = torch.softmax(self.score(x), dim=0).squeeze(-1)").replace("range(236)", "range(232)")
    evaluation = "model.eval()\n    with torch.no_grad(): print([model(one[None]).argmax().item() for one in x[:3]])"
    return program.rstrip() + f"\n    {evaluation}\n"


@blamed(SoftmaxWrongDim, at="loss = ")
def logarithms_over_the_batch() -> str:
    return loop(loss="loss = F.nll_loss(F.log_softmax(model(x[part]), dim=0), y[part])")


@blamed(SoftmaxWrongDim, at="loss = ")
def probabilities_over_the_batch() -> str:
    return loop(loss="loss = F.nll_loss(torch.log(model(x[part]).softmax(0)), y[part])")


@quiet(SoftmaxWrongDim)
def over_the_classes() -> str:
    return loop(loss="loss = F.nll_loss(F.log_softmax(model(x[part]), dim=-1), y[part])")


@quiet(SoftmaxWrongDim)
def weights_of_samples_outside_of_the_model() -> str:
    weight = "x[part].mean((1, 2)).softmax(0)"
    return loop(loss=f"loss = (F.cross_entropy(model(x[part]), y[part], reduction='none') * {weight}).sum()")


@quiet(SoftmaxWrongDim)
def a_bag_of_instances() -> str:
    """The first dimension is the instances of one bag, with one label."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)


        class Bag(nn.Module):
            def __init__(self):
                super().__init__()
                self.score, self.head = nn.Linear(4, 1), nn.Linear(4, 2)

            def forward(self, bag):
                return self.head((torch.softmax(self.score(bag), dim=0) * bag).sum(0, keepdim=True))


        model = Bag()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(20):
            bag = torch.randn(3 + step % 5, 4)
            loss = nn.functional.cross_entropy(model(bag), (bag.mean() > 0).long().view(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """


@quiet(SoftmaxWrongDim)
def nodes_of_graphs() -> str:
    """Each graph has its own number of nodes, with a label for each node."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)


        class Graph(nn.Module):
            def __init__(self):
                super().__init__()
                self.score, self.head = nn.Linear(4, 2), nn.Linear(8, 2)

            def forward(self, nodes):
                weight = torch.softmax(self.score(nodes), dim=0)
                context = (weight.sum(1, keepdim=True) * nodes).sum(0).expand(len(nodes), -1)
                return self.head(torch.cat([nodes, context], 1))


        model = Graph()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(24):
            nodes = torch.randn(5 + step, 4)
            loss = nn.functional.cross_entropy(model(nodes), (nodes[:, 0] > 0).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """


@blamed(SoftmaxWrongDim, at="weight = ")
def the_batch_in_the_second_dimension() -> str:
    """The model is given steps x samples."""
    program = loop("weight = torch.softmax(score, dim=1)").replace("x[part]", "x[part].transpose(0, 1)")
    return program.replace(".sum(1)))", ".sum(0)))")


@blamed(SoftmaxWrongDim, at="loss = ")
def nodes_of_one_graph_of_which_some_have_labels() -> str:
    """The picked rows do not sum to 1 over any dimension, and all batches have one size."""
    return loop(loss="loss = F.nll_loss(F.log_softmax(model(x), dim=0)[part], y[part])")


@quiet(SoftmaxWrongDim)
def classes_that_were_moved_after_the_softmax() -> str:
    """Over the last dimension, which becomes the second one, as the loss wants it."""
    return loop(
        loss="p = F.log_softmax(model(x[part])[:, None].expand(-1, 3, -1), dim=-1); "
        "loss = F.nll_loss(p.transpose(1, 2), y[part][:, None].expand(-1, 3))"
    )
