"""Messages that a data set holds no sample."""

from __future__ import annotations

from dataclasses import replace

import postmortem
from postmortem.core.model import Event
from postmortem.detectors.empty_dataset import EmptyDataset
from tests.detectors.cases import fires, quiet

NOTHING = Event(kind="empty-cache", severity="warning", message="Cache preloaded: 0 items", line=2)


@fires(EmptyDataset, event_list=[NOTHING])
def a_cache_of_0_items(base):
    return base


@quiet(EmptyDataset, event_list=[replace(NOTHING, message="Found 0 images in data/test")])
def no_test_data(base):
    """A training can do without a test split."""
    return base


def test_an_empty_data_set_before_later_attempts(tmp_path):
    """The first start of a log found no data; later ones, appended to it, trained."""
    epochs = "".join(f"Epoch {i}/9 loss {2 / i:.3f} val_loss {2.2 / i:.3f}\n" for i in range(1, 10))
    for lines, severity in ((epochs, "warning"), (epochs + epochs.replace("loss 2", "loss 3"), "info")):
        (tmp_path / "train.log").write_text("Found 0 images in data/train\n" + lines)
        (report,) = postmortem.scan(tmp_path / "train.log").runs
        assert [f.severity for f in report.findings if f.name == "empty-dataset"] == [severity]
