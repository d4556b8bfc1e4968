"""The condition that a CUDA kernel printed says which kind of value was wrong."""

from __future__ import annotations

import numpy as np
import pytest

import postmortem
from postmortem.core.model import Checkpoint, Event
from postmortem.core.view import View
from postmortem.diagnoses.device_assert import DeviceAssert
from postmortem.judging.causes import diagnose
from tests.diagnoses.cases import quiet, tells


@tells(
    DeviceAssert,
    name="crash: device-assert",
    root="crash",
    step=399,
    ended="crashed",
    event_list=[
        Event(kind="device-assert", severity="error", message="device-assert", file="train.err", line=1, step=399)
    ],
)
def the_message_alone(course):
    return course()


@quiet(
    DeviceAssert,
    ended="crashed",
    event_list=[
        Event(kind="illegal-access", severity="error", message="illegal-access", file="train.err", line=1, step=399)
    ],
)
def an_illegal_memory_access(course):
    """No kernel checked anything here."""
    return course()


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 61, in <module>
    loss.backward()
RuntimeError: CUDA error: device-side assert triggered
"""


@pytest.mark.parametrize(
    ("kernel", "assertion", "summary", "advice"),
    [
        (
            "Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d",
            "t >= 0 && t < n_classes",
            "A label is outside",
            "Check min and max of the labels",
        ),
        (
            "NLLLoss2d.cu:104: nll_loss2d_forward_kernel",
            "cur_target >= 0 && cur_target < n_classes",
            "A label is outside",
            "Check min and max",
        ),
        (
            "Indexing.cu:1369: indexSelectLargeIndex",
            "srcIndex < srcSelectDimSize",
            "An index into an embedding",
            "model.resize_token_embeddings",
        ),
        (
            "ScatterGatherKernel.cu:144: operator()",
            'idx_dim >= 0 && idx_dim < index_size && "index out of bounds"',
            "An index into an embedding",
            "model.resize_token_embeddings",
        ),
        (
            "IndexKernel.cu:94: operator()",
            'index >= -sizes[i] && index < sizes[i] && "index `i` out of bounds"',
            "An index into an embedding",
            "model.resize_token_embeddings",
        ),
        (
            "Loss.cu:94: operator()",
            "target_val >= zero && target_val <= one",
            "Binary cross-entropy received",
            "Use BCEWithLogitsLoss",
        ),
        (
            "Loss.cu:92: operator()",
            "input_val >= zero && input_val <= one",
            "Binary cross-entropy received",
            "Use BCEWithLogitsLoss",
        ),
        (
            "MultinomialKernel.cu:112: binarySearchForMultinomial",
            "cumdist[size - 1] > static_cast<scalar_t>(0)",
            "A probability distribution",
            "Look for",
        ),
    ],
)
def test_the_condition(kernel, assertion, summary, advice, tmp_path):
    lines = "".join(
        f"../aten/src/ATen/native/cuda/{kernel}: block: [0,0,0], thread: [{i},0,0] Assertion `{assertion}` failed.\n"
        for i in range(3)
    )
    (tmp_path / "train.out").write_text(
        "".join(f"step {i} loss {2 / i:.3f}\n" for i in range(1, 20)) + lines + TRACEBACK
    )
    found = postmortem.scan(tmp_path).runs[0].diagnosis
    assert found.name == "crash: device-assert"
    assert found.summary.startswith(summary)
    assert f"`{assertion}` failed" in found.summary
    assert found.next[0].startswith(advice)
    assert any("CUDA_LAUNCH_BLOCKING" in text for text in found.next)
    assert "operator()" not in found.summary


def test_without_a_condition(tmp_path):
    """Where the kernel's line is lost, the advice is how to get it."""
    (tmp_path / "train.out").write_text("step 1 loss 2\nstep 2 loss 1\n" + TRACEBACK)
    found = postmortem.scan(tmp_path).runs[0].diagnosis
    assert found.next[0].startswith("Run the step on the CPU")


def test_with_a_checkpoint(story):
    """The command that replays the step stays; of the general advice only how to get at the line."""
    event = Event(
        kind="device-assert",
        severity="error",
        message="CUDA error: device-side assert triggered",
        file="train.out",
        line=61,
        step=30,
        fields={"assertion": "t >= 0 && t < n_classes", "kernel": "nll_loss_forward_reduce_cuda_kernel_2d"},
    )
    report = story({"loss": np.linspace(2, 1, 31)}, event_list=[event], ended="crashed")
    report.run.checkpoints[:] = [Checkpoint(path="runs/exp7/step-20.pt", step=20)]
    found, *_ = diagnose(View(report.run), report.findings)
    advice = [text.split(" ")[0] for text in found.next]
    assert advice == ["Check", "Set", "postmortem", "Run", "to", "postmortem"]
    assert found.next[2].startswith("postmortem replay")


@pytest.mark.parametrize("end", ["", "`", "' failed.", "`]"])
def test_the_end_of_a_condition(tmp_path, end):
    """A line that is cut, or quotes in another way, shows all that there is of the condition."""
    said = (
        "IndexKernel.cu:94: operator(): block: [0,0,0], thread: [5,0,0] Assertion `index >= -sizes[i] && index < "
        "sizes[i]" + end
    )
    (tmp_path / "train.out").write_text("step 1 loss 2\nstep 2 loss 1\n" + said + "\n" + TRACEBACK)
    (event,) = postmortem.scan(tmp_path).runs[0].events
    assert event.fields["assertion"] == "index >= -sizes[i] && index < sizes[i]"
