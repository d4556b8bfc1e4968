"""`postmortem.inspect`: the numbers are those of numpy, whatever the tensor is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

torch = pytest.importorskip("torch")

import postmortem  # noqa: E402
from postmortem.core.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.torch


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.bool_]),
        arrays.array_shapes(max_dims=3, max_side=5),
    ).filter(lambda values: not (np.abs(values[np.isfinite(values)].astype(float)) > 1e100).any())
    | arrays.arrays(np.float32, (3, 4), elements=st.sampled_from([0.0, 1e7, 1e7 + 1, np.nan, np.inf, -np.inf]))
)
def test_numbers(values: np.ndarray) -> None:
    """Over the finite values, in double precision."""
    row = postmortem.inspect(torch.from_numpy(values)).iloc[0]
    plain = values.astype(np.float64)
    finite = plain[np.isfinite(plain)]
    assert (row["shape"], row["bytes"]) == (values.shape, values.nbytes)
    assert (row.zeros, row.nan, row.inf) == ((plain == 0).sum(), np.isnan(plain).sum(), np.isinf(plain).sum())
    if finite.size:
        wanted = [finite.mean(), finite.std(), finite.min(), finite.max()]
        assert np.allclose(row[["mean", "std", "min", "max"]].astype(float), wanted, rtol=1e-9, atol=1e-9)
    else:
        assert row[["mean", "std", "min", "max"]].isna().all()


def test_a_model_and_its_gradients() -> None:
    """Parameters, buffers, the gradients that there are and the one that is missing."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    model[1].running_var[1] = float("inf")
    model[2].weight.requires_grad_(False)
    frame = postmortem.inspect(model).set_index("name")
    assert frame.kind.value_counts().to_dict() == {"parameter": 6, "buffer": 3}
    assert frame.loc["1.running_var", "inf"] == 1
    model[0](torch.ones(2, 3)).sum().backward()
    grads = postmortem.inspect(model, gradients=True).set_index("name")
    assert set(grads.kind) == {"gradient"}
    assert "2.weight" not in grads.index
    assert grads.loc["0.bias", "mean"] == 2
    assert grads.loc["2.bias", ["mean", "zeros"]].isna().all()


def test_layouts() -> None:
    """Strides of a transposed one; sparse, complex, empty, half and meta tensors."""
    tensors = {
        "transposed": torch.ones(2, 3).T,
        "sparse": torch.eye(3).to_sparse(),
        "complex": torch.tensor([1 + 3j]),
        "empty": torch.ones(0),
        "half": torch.full((2,), 60000.0, dtype=torch.float16),
        "meta": torch.ones(4, device="meta"),
        "inner": {"bias": torch.zeros(2)},
        "epoch": 3,
    }
    frame = postmortem.inspect(tensors).set_index("name")
    assert list(frame.index) == ["transposed", "sparse", "complex", "empty", "half", "meta", "inner.bias"]
    assert frame.loc["transposed", "strides"] == (1, 3)
    assert frame.loc["sparse", "strides"] is None
    assert frame.loc["complex", ["mean", "min", "max"]].tolist() == [2, 1, 3]
    assert frame.loc["half", ["mean", "std"]].tolist() == [60000, 0]
    assert frame.loc[["empty", "meta"], "mean"].isna().all()
    assert frame.loc["empty", ["zeros", "nan", "inf"]].tolist() == [0, 0, 0]
    assert frame.loc["meta", ["zeros", "nan", "inf"]].isna().all()


def test_an_optimizer_and_several_tensors() -> None:
    """The state of an optimizer has the names of its parameters; pairs keep their names, others are counted."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    named = postmortem.inspect(optimizer).name
    assert {"weight", "weight.exp_avg", "bias.exp_avg_sq"} <= set(named)
    assert list(postmortem.inspect(model.named_parameters()).name) == ["weight", "bias"]
    assert list(postmortem.inspect(model.parameters()).name) == ["0", "1"]
    assert postmortem.inspect([]).empty


@pytest.mark.parametrize("wrong", [3, "model", None])
def test_what_is_no_tensor(wrong: object) -> None:
    """One clear line."""
    with pytest.raises(UsageError, match="inspect takes a tensor, a module"):
        postmortem.inspect(wrong)


@pytest.mark.gpu
def test_one_copy_from_a_device() -> None:
    """Nothing else waits for it."""
    tensors = [torch.ones(4, device="cuda") for _ in range(5)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchroniz") as told:
            frame = postmortem.inspect(tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in told if "called a synchronizing" in str(w.message)]) == 1
    assert list(frame["mean"]) == [1.0] * 5
