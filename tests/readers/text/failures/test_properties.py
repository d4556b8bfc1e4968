"""Any lines, any cut, any interleaving: no exception, and time that stays in bounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmortem.readers.text.failures import find_events
from postmortem.readers.text.failures.prefilter import Prefilter
from postmortem.signatures import CATALOGUE

PIECES = [
    "Traceback (most recent call last):",
    "Original Traceback (most recent call last):",
    '  File "/home/me/train.py", line 3, in f',
    '  File "/opt/lib/python3.11/site-packages/torch/x.py", line 3, in f',
    "    g(x)",
    "       ^^^^",
    "ValueError: bad",
    "KeyError: Caught KeyError in DataLoader worker process 0.",
    "torch._dynamo.exc.Unsupported: x",
    "KeyboardInterrupt",
    "",
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
    "  + Exception Group Traceback (most recent call last):",
    "  | ExceptionGroup: several (2 sub-exceptions)",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "============================================================",
    "Root Cause (first observed failure):",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -9 (pid: 333)  (SIGKILL)",
    "step 3 loss 0.5",
    "Epoch 1:  42%|####  | 42/100 [00:12<00:17, 3.4it/s]\rEpoch 1:  43%|####  | 43/100 [00:12<00:17, 3.4it/s]",
    *(line for s in CATALOGUE.values() for line in s.examples[0].split("\n")[:2]),
]
PREFIXES = [
    "",
    "",
    "[rank0]: ",
    "[rank1]: ",
    "[default1]:[rank3]: ",
    " 3: ",
    "[E1120 12:31:25.416 x.cpp:1] ",
    "2026-11-20 12:00:01,104 - ERROR - ",
    "\x1b[31m",
]
line = st.builds(
    lambda prefix, piece, cut: (prefix + piece)[:cut],
    st.sampled_from(PREFIXES),
    st.sampled_from(PIECES),
    st.sampled_from([400, 400, 400, 30, 7]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(line, max_size=40), st.booleans())
def test_any_mix_of_lines_is_read(lines: list[str], unterminated: bool) -> None:
    """Events lie inside the file, in order, and each names an entry of the catalogue."""
    reading = find_events(enumerate(lines, 1), path="x", unterminated=unterminated)
    numbers = [e.line for e in reading.events]
    assert numbers == sorted(numbers, key=lambda n: n or 0)
    assert all(n is not None and 1 <= n <= len(lines) for n in numbers)
    assert all(e.kind in CATALOGUE for e in reading.events)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=15))
def test_any_text_is_read(lines: list[str]) -> None:
    """Unicode, control characters and surrogates raise nothing."""
    find_events(enumerate(lines, 1), path="x")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["0", "1", "2"]), min_size=4, max_size=40))
def test_interleaving_with_rank_prefixes_changes_nothing(order: list[str]) -> None:
    """However the lines of three ranks are mixed, the failure of each is the same."""
    block = ["Traceback (most recent call last):", '  File "/home/me/a.py", line 7, in f', "    g()", "ValueError: x y"]
    left = {rank: list(block) for rank in "012"}
    lines = [f"[rank{rank}]: {left[rank].pop(0)}" for rank in order if left[rank]]
    lines += [f"[rank{rank}]: {text}" for rank in "012" for text in left[rank]]
    (event,) = find_events(enumerate(lines, 1), path="x").events
    assert event.fields["ranks"] == [0, 1, 2]
    assert event.fields["frame"]["line"] == 7


@pytest.mark.parametrize(
    "text",
    [
        "Error: " * 100_000,
        "a" * 1_000_000 + "Error",
        "CUDA out of memory. Tried to allocate " + "1" * 1_000_000,
        "grad.sizes() = [" + "1, " * 100_000,
        "Function '" + "S" * 1_000_000,
        "mat1 and mat2 shapes cannot be multiplied (" * 50_000,
        "\r".join(["Traceback (most recent call last):"] * 50_000),
        "[rank0]: " * 100_000,
        "a." * 200_000 + "Error: x",
        "Root Cause (first observed failure):" + " rank : " * 100_000,
        " " * 1_000_000 + "Error:",
    ],
    ids=range(11),
)
def test_a_pathological_line_ends_and_stays_small(text: str) -> None:
    """Megabytes that look like a failure all along come to an end (a pattern without bound would not), and no event
    keeps them."""
    found = find_events(
        [(1, "Traceback (most recent call last):"), (2, text), (3, "ValueError: " + text), (4, text)], path="x"
    )
    assert all(len(event.message) < 100_000 for event in found.events)


def test_a_flood_keeps_its_count() -> None:
    """More occurrences than are kept are still counted."""
    line = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}.0"
    (event,) = find_events(((i, line.format(i)) for i in range(1, 22_001)), path="x").events
    assert event.fields["count"] == 22_000


def test_a_flood_of_exceptions_keeps_its_count() -> None:
    """So are exceptions with the words of a text that in an ordinary line would only be a note."""
    frame = '  File "/home/me/train.py", line 3, in f'
    block = [
        "Traceback (most recent call last):",
        frame,
        "    g(x)",
        "RuntimeError: Found 0 images in data/train",
        "",
        "",
    ]
    (event,) = find_events(enumerate([*block, "", "-"] * 1500, 1), path="x").events
    assert (event.kind, event.severity) == ("empty-cache", "error")
    assert event.fields["count"] == 1500


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text(alphabet="abCUDA out\r\x00é", max_size=30), max_size=8),
    st.sampled_from(["CUDA out", "a out", "éabC"]),
    st.integers(0, 7),
)
def test_the_prefilter_finds_what_is_there(lines: list[str], anchor: str, at: int) -> None:
    """Exactly the lines that hold an anchor, wherever it stands in them."""
    if lines:
        lines[at % len(lines)] += anchor
    assert Prefilter([anchor]).lines_with(lines) == [i for i, text in enumerate(lines) if anchor in text]


def test_an_anchor_may_ask_for_the_end_of_a_line() -> None:
    """A line feed in an anchor is the end of the line; the last line has one too."""
    assert Prefilter(["Error\n"]).lines_with(["Error here", "AssertionError", "x", "EOFError"]) == [1, 3]


def test_short_anchors_are_refused() -> None:
    """Three bytes are too few to be told apart."""
    with pytest.raises(ValueError, match="too short"):
        Prefilter(["nan"])
