"""One batch again and again."""

from __future__ import annotations

from postmortem.silent.faults.same_batch_repeated import SameBatchRepeated
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x, y = torch.randn(240, 4), torch.randn(240, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size={batch})
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    {before}
    for step in range(30):
        {batches}
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def loop(*batches: str, before: str = "pass", batch: int = 8) -> str:
    return LOOP.format(batches=("\n" + " " * 8).join(batches), before=before, batch=batch)


@blamed(SameBatchRepeated, at="next(iter(loader))")
def the_loader_begins_anew() -> str:
    return loop("xb, yb = next(iter(loader))")


@blamed(SameBatchRepeated, at="next(iter(loader))")
def a_batch_that_was_read_once() -> str:
    return loop(before="xb, yb = next(iter(loader))")


@blamed(SameBatchRepeated, at="next(iter(loader))")
def of_a_loader_with_a_sampler_of_batches() -> str:
    """As libraries make one of another one."""
    batches = "torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(x), 8, False)"
    again = f"loader = DataLoader(loader.dataset, batch_sampler={batches})"
    return loop(before=f"{again}\n    xb, yb = next(iter(loader))")


@blamed(SameBatchRepeated, at="xb, yb = x[:8]")
def a_slice_that_does_not_move() -> str:
    return loop("xb, yb = x[:8], y[:8]")


@blamed(SameBatchRepeated, at="torch.manual_seed(1)")
def a_seed_in_the_loop() -> str:
    return loop("torch.manual_seed(1)", "part = torch.randint(0, 240, (8,))", "xb, yb = x[part], y[part]")


@blamed(SameBatchRepeated, at="part = torch.randint")
def a_generator_that_is_seeded_anew() -> str:
    generator = "generator = torch.Generator().manual_seed(1)"
    return loop(generator, "part = torch.randint(0, 240, (8,), generator=generator)", "xb, yb = x[part], y[part]")


NUMPY = "part = torch.from_numpy(rng.integers(0, 240, 8))"


@blamed(SameBatchRepeated, at="rng = numpy.random.default_rng(1)")
def a_generator_of_numpy_that_is_made_anew() -> str:
    return loop("rng = numpy.random.default_rng(1)", NUMPY, "xb, yb = x[part], y[part]", before="import numpy")


ROWS = "rows = [x[start + i] for i in range(8)]"


@blamed(SameBatchRepeated, at="start = 0")
def rows_that_are_stacked_from_one_start() -> str:
    return loop("start = 0 * step", ROWS, "xb, yb = torch.stack(rows), y[:8]")


@quiet(SameBatchRepeated)
def rows_that_are_stacked_from_another_start_each_time() -> str:
    return loop("start = 8 * step % 232", ROWS, "xb, yb = torch.stack(rows), y[:8]")


@quiet(SameBatchRepeated)
def all_rows_are_stacked() -> str:
    return loop("xb, yb = torch.stack(list(x)), y")


@quiet(SameBatchRepeated)
def a_generator_of_numpy_with_another_seed_in_each_step() -> str:
    return loop("rng = numpy.random.default_rng(step)", NUMPY, "xb, yb = x[part], y[part]", before="import numpy")


@quiet(SameBatchRepeated)
def a_generator_that_goes_on() -> str:
    return loop(
        "part = torch.randint(0, 240, (8,), generator=generator)",
        "xb, yb = x[part], y[part]",
        before="generator = torch.Generator().manual_seed(1)",
    )


@quiet(SameBatchRepeated)
def the_loader_goes_on() -> str:
    return loop("xb, yb = next(batches)", before="batches = iter(loader)")


@quiet(SameBatchRepeated)
def all_of_the_data() -> str:
    return loop("xb, yb = x, y")


@quiet(SameBatchRepeated)
def all_of_the_training_half() -> str:
    """The other half is for the evaluation."""
    return loop("xb, yb = x[:100], y[:100]", "with torch.no_grad(): print(model(x[100:]).mean())")


@quiet(SameBatchRepeated)
def a_loader_with_one_batch() -> str:
    return loop("xb, yb = next(iter(loader))", batch=240)


@quiet(SameBatchRepeated)
def all_of_the_data_prepared_anew() -> str:
    return loop("xb, yb = x / x.std(0), y")


@blamed(SameBatchRepeated, at="xb, yb = next(")
def a_generator_that_is_made_anew() -> str:
    """The evaluation uses other rows of the same tensor."""
    batches = "pairs = lambda: ((x[i : i + 8], y[i : i + 8]) for i in range(0, 200, 8))"
    return loop("xb, yb = next(pairs())", "with torch.no_grad(): print(model(x[200:]).mean())", before=batches)


@quiet(SameBatchRepeated)
def one_batch_that_is_to_be_overfitted() -> str:
    return loop("assert step < 100  # overfit one batch", before="xb, yb = next(iter(loader))")


@quiet(SameBatchRepeated)
def a_part_that_the_source_names() -> str:
    return loop("xb, yb = x[:n_train], y[:n_train]", before="n_train = 40")


TWICE = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    waves = torch.randn(6, 30, 12)
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kept = torch.Generator().manual_seed(3)
    for step in range(30):
        g = {generator}
        one = torch.randint(6, (16,), generator=g)
        two = torch.randint(6, (16,), generator=g)
        row = torch.randint(30, (16,), generator=g)
        a, b = waves[one, row], waves[two, row.flip(0)]
        loss = ((model(a) - model(b)).square().mean(1) - (one != two).float()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@blamed(SameBatchRepeated, at="one = torch.randint")
def pairs_from_a_generator_that_is_seeded_anew() -> str:
    """The model is called twice in each step, with two inputs, each the same in all steps."""
    return TWICE.format(generator="torch.Generator().manual_seed(3)")


@quiet(SameBatchRepeated)
def pairs_from_a_generator_that_goes_on() -> str:
    return TWICE.format(generator="kept")


@quiet(SameBatchRepeated)
def all_batches_of_a_loader_in_each_step() -> str:
    """Gradients of the whole data are accumulated."""
    return """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        x = torch.randn(96, 4)
        loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=24)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(20):
            optimizer.zero_grad()
            for xb, yb in loader:
                (nn.functional.mse_loss(model(xb), yb) / 4).backward()
            optimizer.step()
    """
