"""Measures the event file reader against TensorBoard's own EventAccumulator, in one run on one machine.

    python benchmarks/readers.py [--points N] [--file EVENTS]

Makes event files of four shapes (or takes yours) and prints CPU seconds, the best of three, for all points into
columns with every checksum checked, and how many times as long the EventAccumulator takes to load the same points.
Both get the same files from the page cache.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto

from postmortem.readers.tensorboard import TensorBoard
from postmortem.readers.tensorboard.crc32c import masked

SCALARS = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000, help="points per shape (default 100000)")
    parser.add_argument("--file", type=Path, help="measure this event file instead")
    options = parser.parse_args()
    print(f"{'shape':<24}{'points':>10}{'ours, s':>10}{'EventAccumulator, s':>22}{'ratio':>8}")
    if options.file:
        measure(options.file.name[:23], [options.file])
        return
    for name, make in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            measure(name, make(Path(folder), options.points))


def measure(name: str, files: list[Path]) -> None:
    ours = best(lambda: sum(len(TensorBoard.read(file).points) for file in files))
    theirs = best(lambda: sum(accumulated(file) for file in files))
    if ours[1] != theirs[1]:
        raise SystemExit(f"{name}: {ours[1]} points here, {theirs[1]} there")
    print(f"{name:<24}{ours[1]:>10}{ours[0]:>10.3f}{theirs[0]:>22.3f}{theirs[0] / ours[0]:>7.1f}x")


def best(read: Callable[[], int], times: int = 3) -> tuple[float, int]:
    """CPU seconds of the fastest of some calls, and the points they gave."""
    seconds = []
    for _ in range(times):
        begin = time.process_time()
        points = read()
        seconds.append(time.process_time() - begin)
    return min(seconds), points


def accumulated(file: Path) -> int:
    accumulator = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    tags = accumulator.Tags()
    return sum(len(accumulator.Scalars(tag)) for tag in tags["scalars"]) + sum(
        len(accumulator.Tensors(tag)) for tag in tags["tensors"]
    )


def write(path: Path, events: Iterator[Event]) -> Path:
    with path.open("wb") as stream:
        for event in (Event(wall_time=1.7e9, file_version="brain.Event:2"), *events):
            payload = event.SerializeToString()
            header = struct.pack("<Q", len(payload))
            stream.write(header + struct.pack("<I", masked(header)) + payload + struct.pack("<I", masked(payload)))
    return path


def scalars(points: int, tags: int) -> Iterator[Event]:
    for i in range(points):
        value = Summary.Value(
            tag=f"grad_norm/layers.{i % tags}.weight" if tags > 5 else f"train/loss{i % tags}", simple_value=1 / (i + 1)
        )
        yield Event(wall_time=1.7e9 + i / 10, step=i // tags, summary=Summary(value=[value]))


def tensors(points: int) -> Iterator[Event]:
    for i in range(points):
        value = Summary.Value(
            tag=f"loss{i % 5}",
            tensor=TensorProto(dtype=1, float_val=[1 / (i + 1)]),
            metadata=SCALARS if i < 5 else None,
        )
        yield Event(wall_time=1.7e9 + i / 10, step=i // 5, summary=Summary(value=[value]))


def named(folder: Path, i: int = 0) -> Path:
    return folder / f"events.out.tfevents.17000{i:05d}.host.1.0"


SHAPES: dict[str, Callable[[Path, int], list[Path]]] = {
    "5 tags": lambda folder, n: [write(named(folder), scalars(n, 5))],
    "500 tags": lambda folder, n: [write(named(folder), scalars(n, 500))],
    "TF2 tensors, 5 tags": lambda folder, n: [write(named(folder), tensors(n))],
    "100 files": lambda folder, n: [write(named(folder, i), scalars(n // 100, 5)) for i in range(100)],
}

if __name__ == "__main__":
    main()
