"""Labels that are shifted in two places."""

from __future__ import annotations

import textwrap

from postmortem.silent.faults.labels_shifted_twice import LabelsShiftedTwice
from tests.silent.faults.cases import blamed, quiet
from tests.silent.faults.sequence_programs import language_model

SHIFTED = "F.cross_entropy(model(x)[:, :-1].flatten(0, 1), y[:, 1:].flatten())"


@blamed(LabelsShiftedTwice, at="y[:, 1:]")
def in_the_batch_and_in_the_loss() -> str:
    return language_model(loss=SHIFTED)


@quiet(LabelsShiftedTwice)
def in_the_batch() -> str:
    return language_model()


@quiet(LabelsShiftedTwice)
def in_the_loss() -> str:
    return language_model(batch="x = y = ids[:, :-1]", loss=SHIFTED)


@quiet(LabelsShiftedTwice)
def without_the_first_prediction() -> str:
    loss = "F.cross_entropy(model(x)[:, 1:].flatten(0, 1), y[:, 1:].flatten())"
    return language_model(loss=loss)


@quiet(LabelsShiftedTwice)
def two_tokens_are_predicted() -> str:
    loss = f"{SHIFTED} + F.cross_entropy(model(x).flatten(0, 1), y.flatten())"
    return language_model(loss=loss)


HIDDEN = "shifted_loss(model(x), y)"
MODULE = """
def shifted_loss(output, labels):
    return torch.nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), labels.roll(-1, 1)[:, :-1].flatten())
"""


@blamed(LabelsShiftedTwice, at="labels = ")
def in_the_batch_and_out_of_sight() -> str:
    """Nothing near the loss is shifted by a slice from 1 on."""
    program = language_model(batch="x, y = shifted(ids)", loss=HIDDEN)
    first = program.index("torch.manual_seed")
    indent = program[program.rindex("\n", 0, first) + 1 : first]
    functions = MODULE + "\n\ndef shifted(ids):\n    labels = ids[:, 1:]\n    return ids[:, :-1], labels\n\n\n"
    return program[: first - len(indent)] + textwrap.indent(functions, indent) + program[first - len(indent) :]


RNN = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    text = torch.randint(0, 20, (600,))


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.rnn, self.head = nn.Embedding(20, 8), nn.GRU(8, 16), nn.Linear(16, 20)

        def forward(self, x):
            return self.head(self.rnn(self.table(x))[0])


    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(12):
        rows = torch.stack([text[i : i + 17] for i in range(step, step + 480, 60)], 1)
        x, y = rows[:-1], rows[1:]
        loss = nn.functional.cross_entropy({loss})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@blamed(LabelsShiftedTwice, at="y[1:]")
def positions_before_samples() -> str:
    return RNN.format(loss="model(x)[:-1].flatten(0, 1), y[1:].flatten()")


@quiet(LabelsShiftedTwice)
def positions_before_samples_without_the_first() -> str:
    return RNN.format(loss="model(x)[1:].flatten(0, 1), y[1:].flatten()")
