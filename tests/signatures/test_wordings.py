"""Wordings that versions of the frameworks have used, beside the examples in the catalogue: wordings.txt, one a
line."""

from pathlib import Path

import pytest

from postmortem.signatures import CATALOGUE

WORDINGS = [line.split("\t", 1) for line in (Path(__file__).parent / "wordings.txt").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(("kind", "text"), WORDINGS, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(WORDINGS)])
def test_a_wording_is_known(kind: str, text: str) -> None:
    """The entry of highest rank is the one that explains it."""
    found = CATALOGUE.match(text, exception=CATALOGUE[kind].scope != "line")
    assert found is not None
    assert found[0].id == kind


def test_an_old_memory_error_says_the_same_as_a_new_one() -> None:
    """Total, free and allocated memory are found in the wording before torch 2.1 and after it, with its typing
    error."""
    asked = "CUDA out of memory. Tried to allocate 20.00 MiB"
    old = asked + " (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)"
    new = (
        asked
        + ". GPU 0 has a total capacty of 10.92 GiB of which 9.28 GiB is free. Process 7 has 1.00 GiB memory in use."
    )
    oom = CATALOGUE["cuda-oom"]
    assert oom.detail(old)["total_gib"] == oom.detail(new)["total_gib"] == 10.92
    assert oom.detail(old)["free_gib"] == oom.detail(new)["free_gib"] == 9.28
    assert oom.detail(new)["other_pid"] == 7
