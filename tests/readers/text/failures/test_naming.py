"""What a traceback is called, and the fields of its event."""

from postmortem.readers.text.failures.exceptions import Block, Chain, Frame
from postmortem.readers.text.failures.naming import name_chain

OWN = Frame("/home/me/train.py", 7, "step", "loss.backward()")
LIBRARY = Frame("/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward")
MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB"


def test_the_exception_that_the_catalogue_knows_best_names_the_chain() -> None:
    """A wrapper that follows a known failure does not hide it; the fields still describe the last exception."""
    cause = Block(1, 3, "torch.OutOfMemoryError", MEMORY, frames=[OWN, LIBRARY])
    wrapper = Block(5, 7, "mylib.TrainingFailed", "giving up")
    named = name_chain(Chain([cause, wrapper]))
    assert named is not None
    signature, fields = named
    assert signature.id == "cuda-oom"
    assert (fields["exception"], fields["exception_class"]) == ("TrainingFailed", "mylib.TrainingFailed")
    assert fields["causes"] == [f"torch.OutOfMemoryError: {MEMORY}"]


def test_the_frame_is_the_innermost_one_of_the_user() -> None:
    """Frames of installed packages are passed over."""
    named = name_chain(Chain([Block(1, 3, "ValueError", "bad", frames=[OWN, LIBRARY])]))
    assert named is not None
    assert named[1]["frame"] == {"file": OWN.file, "line": 7, "function": "step", "code": "loss.backward()"}


def test_the_exception_of_a_worker_gives_the_cause() -> None:
    """What a data-loader worker sent along names the cause and the class, the main process the failure."""
    inner = Block(2, 4, "ValueError", "bad sample", frames=[OWN])
    outer = Block(1, 5, "ValueError", "Caught ValueError in DataLoader worker process 0.", frames=[LIBRARY])
    named = name_chain(Chain([outer], inner))
    assert named is not None
    assert named[0].id == "dl-caught"
    assert named[1]["exception"] == "ValueError"
    assert named[1]["frame"]["file"] == OWN.file


def test_a_warning_that_looks_like_an_exception_has_no_name() -> None:
    """A logger's warning of an unknown class is no failure; as an error it is."""
    warning = Block(1, 1, "MyError", "skipped a file", level="WARNING", had_header=False)
    assert name_chain(Chain([warning])) is None
    warning.level = "ERROR"
    named = name_chain(Chain([warning]))
    assert named is not None
    assert named[0].id == "generic-exception"


def test_a_traceback_without_its_last_line_is_always_named() -> None:
    """The log ended in the middle: the class is unknown, the frames are not."""
    named = name_chain(Chain([Block(1, 1, frames=[OWN])], cut=True))
    assert named is not None
    assert named[0].id == "generic-exception"
    assert named[1]["cut"] is True
    assert named[1]["frame"]["line"] == 7
