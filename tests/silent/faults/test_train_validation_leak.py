"""Training samples in the validation set."""

from __future__ import annotations

import pytest

from postmortem.silent.faults.train_validation_leak import TrainValidationLeak
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset, random_split

    torch.manual_seed(0)
    x = {inputs}
    y = (x.sum(1) > 0).long()
    {split}
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for part in torch.randperm(len(train_x)).split(20):
            loss = nn.functional.cross_entropy(model(train_x[part]), train_y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            {evaluation}
"""
NOISE = "torch.randn(240, 8)"
EVALUATION = "print((model(val_x).argmax(1) == val_y).float().mean())"


def loop(split: str, inputs: str = NOISE, evaluation: str = EVALUATION) -> str:
    return LOOP.format(split=split, inputs=inputs, evaluation=evaluation)


@blamed(TrainValidationLeak, at="model(val_x)")
def halves_that_overlap() -> str:
    return loop("train_x, train_y, val_x, val_y = x[:200], y[:200], x[160:], y[160:]")


@blamed(TrainValidationLeak, at="val_x, val_y = ")
def copies_before_the_split() -> str:
    return loop(
        "x, y = x.repeat(2, 1), y.repeat(2); order = torch.randperm(480)\n"
        "    train_x, train_y = x[order[:400]], y[order[:400]]\n"
        "    val_x, val_y = [t[order].split(400)[1] for t in (x, y)]"
    )


@blamed(TrainValidationLeak, at="model(va)")
def a_short_name() -> str:
    return loop("train_x, train_y, va, vy = x[:200], y[:200], x[160:], y[160:]", evaluation="print(model(va).mean())")


@quiet(TrainValidationLeak)
def a_clean_split() -> str:
    return loop("train_x, train_y, val_x, val_y = x[:200], y[:200], x[200:], y[200:]")


@quiet(TrainValidationLeak)
def the_accuracy_of_the_training() -> str:
    evaluation = "print((model(train_x).argmax(1) == train_y).float().mean())"
    return loop("train_x, train_y = x[:200], y[:200]", evaluation=evaluation)


@quiet(TrainValidationLeak)
def training_and_held_out_data_in_one_line() -> str:
    evaluation = "a, b = (model(x).argmax(1) == y).float().mean(), (model(xv).argmax(1) == yv).float().mean()"
    split = "train_x, train_y, xv, yv = x[:200], y[:200], x[200:], y[200:]; x, y = train_x, train_y"
    return loop(split, evaluation=evaluation)


@quiet(TrainValidationLeak, status="not checked")
def few_states() -> str:
    """Each is there many times, in both parts."""
    return loop(
        "train_x, train_y, val_x, val_y = x[:200], y[:200], x[200:], y[200:]", "torch.eye(8)[torch.arange(240) % 8]"
    )


@quiet(TrainValidationLeak)
def values_of_states_that_are_trained_on() -> str:
    """`val` is no validation set."""
    return loop("train_x, train_y = x, y", evaluation="val = model(train_x)")


ACCURACY = "def accuracy(data): return (model(data[0]).argmax(1) == data[1]).float().mean().item()\n"
PAIRS = "tr, va = (train_x, train_y), (x[200:], y[200:])"


@quiet(TrainValidationLeak)
def training_and_held_out_data_in_calls_among_others() -> str:
    split = f"train_x, train_y = x[:200], y[:200]; {PAIRS}\n    {ACCURACY}"
    return loop(split, evaluation="print(epoch, 'train', round(accuracy(tr), 3), 'held out', round(accuracy(va), 3))")


@quiet(TrainValidationLeak)
def training_and_held_out_data_in_a_loop_over_both() -> str:
    split = f"train_x, train_y = x[:200], y[:200]; {PAIRS}\n    {ACCURACY}"
    return loop(split, evaluation="for name, data in (('train', tr), ('held out', va)): print(name, accuracy(data))")


@quiet(TrainValidationLeak)
def training_and_held_out_data_in_a_list_of_both() -> str:
    split = f"train_x, train_y = x[:200], y[:200]; {PAIRS}\n    {ACCURACY}"
    return loop(split, evaluation="print([accuracy(data) for data in (tr, va)])")


@quiet(TrainValidationLeak)
def the_mean_of_a_value_that_is_called_like_held_out_data() -> str:
    return loop(
        "train_x, train_y = x, y", evaluation="va = model(train_x[:60]).mean(1); print(va.mean(), float(va[0]))"
    )


@blamed(TrainValidationLeak, at="model(val_x)")
def another_loss_in_the_line_of_an_evaluation() -> str:
    split = "train_x, train_y, val_x, val_y = x[:200], y[:200], x[160:], y[160:]"
    return loop(split, evaluation="print(float(loss), float((model(val_x).argmax(1) == val_y).float().mean()))")


@blamed(TrainValidationLeak, at="model(val_x)")
def copies_with_a_little_noise() -> str:
    noisy = "torch.cat([x + 0.01 * torch.randn_like(x) for _ in range(3)])[order]"
    return loop(
        f"order = torch.randperm(720); x, y = {noisy}, y.repeat(3)[order]\n"
        "    train_x, train_y, val_x, val_y = x[:600], y[:600], x[600:], y[600:]"
    )


@quiet(TrainValidationLeak)
def tight_classes() -> str:
    """A sample lies close to all of its class."""
    inputs = "torch.randn(6, 8)[torch.arange(240) % 6] + 0.01 * torch.randn(240, 8)"
    return loop("train_x, train_y, val_x, val_y = x[:200], y[:200], x[200:], y[200:]", inputs)


FOLDS = """
    import copy
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(120, 8)
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    first = copy.deepcopy(model.state_dict())
    folds = torch.randperm(120).split(30)
    for fold in range(4):
        {reset}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        train, val = torch.cat([f for i, f in enumerate(folds) if i != fold]), folds[fold]
        for epoch in range(3):
            for part in train[torch.randperm(90)].split(15):
                loss = nn.functional.cross_entropy(model(x[part]), y[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            print((model(x[val]).argmax(1) == y[val]).float().mean())
"""


@quiet(TrainValidationLeak)
def folds_of_a_model_that_is_loaded_anew() -> str:
    return FOLDS.format(reset="model.load_state_dict(first)")


@quiet(TrainValidationLeak)
def folds_of_a_model_whose_layers_are_reset() -> str:
    return FOLDS.format(reset="for layer in (model[0], model[2]): layer.reset_parameters()")


@blamed(TrainValidationLeak, at="model(x[val])")
def folds_of_a_model_that_is_trained_on() -> str:
    return FOLDS.format(reset="pass")


@quiet(TrainValidationLeak, status="not checked")
def nodes_of_one_graph() -> str:
    """The model is given all of them each time; the loss leaves some out."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        x, near = torch.randn(60, 8), (torch.rand(60, 60) < 0.1).float()
        y = (x.sum(1) > 0).long()
        train, val = torch.randperm(60).split(30)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for epoch in range(20):
            loss = nn.functional.cross_entropy((near @ model(x))[train], y[train])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                val_hits = (model(x)[val].argmax(1) == y[val]).float().mean()
    """


@quiet(TrainValidationLeak)
def users_with_other_items() -> str:
    """The features of a user are in both parts, with another item."""
    return """
        import torch
        from torch import nn

        torch.manual_seed(0)
        features = torch.randn(30, 8)
        pairs = torch.cartesian_prod(torch.arange(30), torch.arange(8))[torch.randperm(240)]
        y = torch.randn(240)


        class Towers(nn.Module):
            def __init__(self):
                super().__init__()
                self.user, self.item = nn.Linear(8, 4), nn.Embedding(8, 4)

            def forward(self, users, items):
                return (self.user(users) * self.item(items)).sum(1)


        model = Towers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        train_pairs, val_pairs = pairs[:180], pairs[180:]
        for epoch in range(3):
            for part in torch.randperm(180).split(20):
                users, items = train_pairs[part].unbind(1)
                loss = nn.functional.mse_loss(model(features[users], items), y[:180][part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                users, items = val_pairs.unbind(1)
                print((model(features[val_pairs[:, 0]], val_pairs[:, 1]) - y[180:]).square().mean())
    """


@quiet(TrainValidationLeak)
def the_accuracy_of_the_training_by_a_function_for_both() -> str:
    """What its parameter is called says nothing of what it is given."""
    accuracy = "def accuracy(test_x, test_y): return (model(test_x).argmax(1) == test_y).float().mean()"
    split = f"{accuracy}\n    train_x, train_y, seen, labels = x[:200], y[:200], x[:200], y[:200]"
    return loop(split, evaluation="print(accuracy(seen, labels))")


@blamed(TrainValidationLeak, at="model(some)")
def held_out_data_given_to_a_function() -> str:
    accuracy = "def accuracy(some, labels): return (model(some).argmax(1) == labels).float().mean()"
    split = f"{accuracy}\n    train_x, train_y, val_x, val_y = x[:200], y[:200], x[160:], y[160:]"
    return loop(split, evaluation="print(accuracy(val_x, val_y))")


@blamed(TrainValidationLeak, at="model(val_x)")
def an_evaluation_in_one_line() -> str:
    program = loop("train_x, train_y, val_x, val_y = x[:200], y[:200], x[160:], y[160:]", evaluation="EVALUATION")
    return program.replace("with torch.no_grad():\n            EVALUATION", f"with torch.no_grad(): {EVALUATION}")


BALANCED = """x, y = [torch.cat([t, t[y == 1]]) for t in (x, y)]; order = torch.randperm(len(x))
    train_x, train_y, xva, yva = x[order[:240]], y[order[:240]], x[order[240:]], y[order[240:]]"""


@blamed(TrainValidationLeak, at="model(xva)")
def a_class_that_is_repeated_before_the_split() -> str:
    return loop(BALANCED, evaluation="print((model(xva).argmax(1) == yva).float().mean())")


@quiet(TrainValidationLeak)
def a_class_that_is_repeated_after_the_split() -> str:
    split = "train_x, train_y, xva, yva = x[:160], y[:160], x[160:], y[160:]\n"
    split += "    train_x, train_y = [torch.cat([t, t[train_y == 1]]) for t in (train_x, train_y)]"
    return loop(split, evaluation="print((model(xva).argmax(1) == yva).float().mean())")


@quiet(TrainValidationLeak)
def short_words_that_are_alike_by_chance() -> str:
    """Training samples equal one another as often."""
    inputs = "torch.arange(8) + torch.randint(-20, 14, (240, 1))"
    return loop("train_x, train_y, val_x, val_y = x[:200], y[:200], x[200:], y[200:]", f"{inputs}.float()")


def test_tokens_have_no_distance() -> None:
    """A text that differs from another in one letter is no copy that was changed a little."""
    torch = pytest.importorskip("torch")
    from postmortem.silent.observe.watchers.overlaps import _near

    numbers = torch.randint(0, 60, (40, 64), generator=torch.Generator().manual_seed(0))
    changed = numbers[:10].clone()
    changed[:, 5] += 1
    assert _near(list(changed.float()), list(numbers.float())) == 10
    assert _near(list(changed), list(numbers)) == 0
