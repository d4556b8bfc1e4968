"""Measures the event file reader against TensorBoard's own readers, in rounds that alternate, on one machine.

    python benchmarks/readers.py [--scale 0.1] [--rounds 3] [--only scalars,many] [--slow] [--keep DIR]

Makes event files of four shapes with TensorBoard's record writer: `scalars` (1 run, 50 tags x 20,000 steps), `many`
(500 runs of 10 tags x 200 steps), `tensors` (20 tags x 10,000 steps in the style of TF2) and `mixed` (20 tags x 10,000
steps between 289 MB of histograms and images). Each round reads all files with every reader, from the page cache, all
points into columns:

- `reader`: our reader alone. `load`: `postmortem.load(run).frame` of each run.
- `server`: the Rust server of tensorboard-data-server, until it holds all points, with --checksum (it drops histograms
  and images). `provider`: the same and its answer to one ReadScalars, as numpy columns in this process.
- with --slow, once: EventAccumulator without size limits, and tbparse.

Prints CPU seconds, the median of the rounds, and how many times as long the others take, the median of the ratios of
the rounds. Needs tensorboard, tensorboard-data-server and, for --slow, tbparse.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import tensorboard_data_server
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer import record_writer

import postmortem
from postmortem.readers.shared.crc32c import masked
from postmortem.readers.tensorboard import TensorBoard

SCALARS = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
LAYERS = [f"encoder.layers.{i}.{part}.weight" for i in range(8) for part in ("attention", "mlp")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the steps, and of the runs of `many`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="shapes, separated by commas (default: all)")
    parser.add_argument("--slow", action="store_true", help="also EventAccumulator and tbparse, once")
    parser.add_argument("--keep", type=Path, help="keep the files in this folder, and use those that are there")
    options = parser.parse_args()
    for name in options.only.split(",") if options.only else SHAPES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.keep or Path(temporary)) / f"{name}-{options.scale}"
            if not folder.exists():
                SHAPES[name](folder, options.scale)
            measure(name, folder, options.rounds, slow=options.slow)


def measure(name: str, folder: Path, rounds: int, *, slow: bool) -> None:
    files = sorted(folder.rglob("*tfevents*"))
    size = sum(file.stat().st_size for file in files)
    readers: dict[str, Callable[[], tuple[int, float]]] = {
        "reader": lambda: in_process(lambda: sum(len(TensorBoard.read(file).points) for file in files)),
        "load": lambda: in_process(lambda: sum(len(postmortem.load(file.parent).frame) for file in files)),
        "server": lambda: rust_server(folder, answer=False),
        "provider": lambda: rust_server(folder, answer=True),
    }
    seconds: dict[str, list[float]] = {reader: [] for reader in readers}
    counts = {}
    for _ in range(rounds):
        for reader, read in readers.items():
            counts[reader], spent = read()
            seconds[reader].append(spent)
    if slow:
        for reader, call in (("EventAccumulator", accumulated), ("tbparse", parsed)):
            counts[reader], spent = in_process(lambda call=call: call(files))  # type: ignore[misc]
            seconds[reader] = [spent] * rounds
    if len({count for reader, count in counts.items() if reader != "server"}) > 1:
        raise SystemExit(f"{name}: the readers found different numbers of points: {counts}")
    print(f"{name}: {counts['reader']} points, {len(files)} files, {size / 1e6:.0f} MB", flush=True)
    for reader, spent in seconds.items():
        ratios = [
            statistics.median(theirs / ours for theirs, ours in zip(spent, seconds[own], strict=True))
            for own in ("reader", "load")
        ]
        print(
            f"  {reader:<18}{statistics.median(spent):>9.3f} s   /reader {ratios[0]:6.2f}   /load {ratios[1]:6.2f}",
            flush=True,
        )


def in_process(read: Callable[[], int]) -> tuple[int, float]:
    """The points that a call found, and its CPU seconds."""
    begin = time.process_time()
    points = read()
    return points, time.process_time() - begin


def rust_server(folder: Path, *, answer: bool) -> tuple[int, float]:
    """The points in the server's answer (0 without one), and CPU seconds: the server's, and ours for the answer."""
    import grpc
    from tensorboard.data.proto import data_provider_pb2, data_provider_pb2_grpc

    with tempfile.TemporaryDirectory() as temporary:
        port = Path(temporary) / "port"
        options = ["--checksum", "--reload", "once", "--samples-per-plugin", "scalars=all", "--port", "0"]
        binary = tensorboard_data_server.server_binary()
        server = subprocess.Popen(
            [binary, "--logdir", folder, "--port-file", port, *options], stderr=subprocess.DEVNULL
        )
        try:
            process = psutil.Process(server.pid)
            idle(process)
            points, own = 0, 0.0
            if answer:
                channel = grpc.insecure_channel(
                    f"localhost:{port.read_text().strip()}", options=[("grpc.max_receive_message_length", -1)]
                )
                begin = time.process_time()
                request = data_provider_pb2.ReadScalarsRequest(experiment_id="e", downsample={"num_points": 1 << 40})
                request.plugin_filter.plugin_name = "scalars"
                found = data_provider_pb2_grpc.TensorBoardDataProviderStub(channel).ReadScalars(request)
                for run in found.runs:
                    for tag in run.tags:
                        columns = (np.array(tag.data.step), np.array(tag.data.wall_time), np.array(tag.data.value))
                        points += len(columns[0])
                own = time.process_time() - begin
                channel.close()
            return points, busy(process) + own
        finally:
            server.kill()
            server.wait()


def busy(process: psutil.Process) -> float:
    """CPU seconds of a process up to now."""
    times = process.cpu_times()
    return float(times.user + times.system)


def idle(process: psutil.Process) -> None:
    """Waits until a process has worked and then not worked for half a second."""
    before, still = -1.0, 0
    while still < 5 or before <= 0:
        time.sleep(0.1)
        now = busy(process)
        still = still + 1 if now == before else 0
        before = now


def accumulated(files: list[Path]) -> int:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points = 0
    for file in files:
        accumulator = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags = accumulator.Tags()
        points += sum(len(accumulator.Scalars(tag)) for tag in tags["scalars"])
        points += sum(len(accumulator.Tensors(tag)) for tag in tags["tensors"])
    return points


def parsed(files: list[Path]) -> int:
    from tbparse import SummaryReader

    readers = (SummaryReader(str(file), event_types={"scalars", "tensors"}) for file in files)
    return sum(len(reader.scalars) + len(reader.tensors) for reader in readers)


def write(folder: Path, events: Iterator[Event]) -> None:
    """Writes an event file with TensorBoard's own record writer, its checksum being computed faster."""
    folder.mkdir(parents=True)
    record_writer.masked_crc32c = masked
    with (folder / "events.out.tfevents.1700000000.host.1.0").open("wb") as stream:
        writer = record_writer.RecordWriter(stream)
        writer.write(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
        for event in events:
            writer.write(event.SerializeToString())


def steps_of(tags: list[str], steps: int, *, tensors: bool = False) -> Iterator[Event]:
    """All tags at each step, as a training loop logs them."""
    values = np.random.default_rng(0).lognormal(size=(steps, len(tags))).astype(np.float32)
    for step in range(steps):
        for j, tag in enumerate(tags):
            value = Summary.Value(tag=tag, simple_value=values[step, j])
            if tensors:
                tensor = TensorProto(dtype=1, tensor_content=values[step, j].tobytes())
                value = Summary.Value(tag=tag, tensor=tensor, metadata=SCALARS)
            yield Event(wall_time=1.7e9 + step * 0.37 + j * 1e-4, step=step, summary=Summary(value=[value]))


def blobs_between(events: Iterator[Event], tags: int, every: int) -> Iterator[Event]:
    """The events, with 14 histograms and an image after each `every` steps of them."""
    random = np.random.default_rng(1)
    for i, event in enumerate(events):
        yield event
        if i % (tags * every) == tags * every - 1:
            for layer in LAYERS[:14]:
                bins = random.integers(200, 1500)
                limits, counts = np.sort(random.normal(size=bins)), random.integers(0, 99, bins).astype(float)
                histogram = HistogramProto(min=-4, max=4, num=1e5, sum=1, sum_squares=1e5)
                histogram.bucket_limit.extend(limits)
                histogram.bucket.extend(counts)
                summary = Summary(value=[Summary.Value(tag=f"weights/{layer}", histo=histogram)])
                yield Event(wall_time=event.wall_time, step=event.step, summary=summary)
            image = Summary.Image(height=256, width=256, colorspace=3, encoded_image_string=random.bytes(98_000))
            summary = Summary(value=[Summary.Value(tag="samples", image=image)])
            yield Event(wall_time=event.wall_time, step=event.step, summary=summary)


def names(count: int) -> list[str]:
    """Names of metrics, of many lengths."""
    first = ["train/loss", "train/lr", "train/grad_norm", "train/tokens_per_second", "eval/loss"]
    return [*first, *(f"grad_norm/{LAYERS[i % 16]}.{i}" for i in range(count))][:count]


def many(folder: Path, scale: float) -> None:
    for i in range(max(1, round(500 * scale))):
        write(folder / f"run{i:03d}", steps_of(names(10), 200))


SHAPES: dict[str, Callable[[Path, float], None]] = {
    "scalars": lambda folder, scale: write(folder / "run", steps_of(names(50), round(20_000 * scale))),
    "many": many,
    "tensors": lambda folder, scale: write(folder / "run", steps_of(names(20), round(10_000 * scale), tensors=True)),
    "mixed": lambda folder, scale: write(
        folder / "run", blobs_between(steps_of(names(20), round(10_000 * scale)), 20, every=10)
    ),
}

if __name__ == "__main__":
    main()
