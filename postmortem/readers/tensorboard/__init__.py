"""Reads TensorBoard event files. What reads their records is imported with the first one: it takes a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from postmortem.readers import reader

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.reading import Reading
    from postmortem.readers import Content, Following


@reader
class TensorBoard:
    """TensorBoard event files, as TensorFlow, torch, tensorboardX and clu write them.

    A file is a sequence of TFRecords, each with an Event message: wall time, step (0 is left out on the wire) and a
    summary of values. A scalar is a `simple_value`, or in TF2 a tensor of one element, of any float, integer or
    boolean type, as raw bytes or as a typed list. Histograms, images, audio, text and graphs are counted. Hparams and
    texts that hold settings (a JSON object, a table of two columns) go to the run's config; failures in other texts
    are events. Of a histogram with a NaN or an infinity in it, the minimum, maximum or sum that shows it is a value
    (``act/fc1/max``); one of a weight's gradient (``grads/layer0.weight``) gives the gradient's norm, one of a layer's
    activations (``act/fc1``) their root mean square (``act/fc1/rms``). All checksums are verified. Damage costs only
    the records it touches: reading continues at the next header with a valid checksum.

    Formats: tensorflow/core/lib/io/record_writer.h; event.proto, summary.proto and tensor.proto in
    tensorboard/compat/proto.
    """

    kind: ClassVar[str] = "tensorboard"
    priority: ClassVar[int] = 10
    content: ClassVar[Content] = "events"

    @staticmethod
    def claims(path: Path, head: bytes) -> bool:
        """A file with "tfevents" in its name."""
        return "tfevents" in path.name

    @staticmethod
    def read(path: Path) -> Reading:
        """Reads a whole event file."""
        from postmortem.readers.tensorboard.event_file import EventFile

        return EventFile(path).read()

    @staticmethod
    def follow(path: Path) -> Following:
        """Reads an event file that grows: its records are told apart without those before them."""
        from postmortem.readers.tensorboard.event_file import Following

        return Following(path)
