"""Messages that a data set holds no sample."""

from __future__ import annotations

from dataclasses import replace

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
