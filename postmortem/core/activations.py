"""The tags of a layer's activations, and of their size."""

from __future__ import annotations

from postmortem.core.patterns import later

SIZE = "/rms"
"""What is added to the tag of activations for that of their root mean square."""
_NAMED = r"(?i)(?:^|[/._ ])(?:acts?|activations?|relu\d*)"
_OF_ACTIVATIONS = later(_NAMED + r"(?:[/._ \d]|$)(?!.*(?:weight|kernel|bias)$)")
_OF_SIZE = later(_NAMED + rf"(?:[/._ \d].*)?{SIZE}$")


def names_activations(tag: str) -> bool:
    """Whether the values of a tag are activations.

    >>> [names_activations(tag) for tag in ("act/fc1", "layer.2.relu1", "relu/weight", "factor")]
    [True, True, False, False]
    """
    return _OF_ACTIVATIONS.search(tag) is not None


def is_size_of_activations(tag: str) -> bool:
    """Whether the values of a tag are the size of activations.

    >>> [is_size_of_activations(tag) for tag in ("act/fc1" + SIZE, "act/fc1", "grad/rms")]
    [True, False, False]
    """
    return _OF_SIZE.search(tag) is not None
