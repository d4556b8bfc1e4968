"""Programs that train in another way than a plain loop, under `postmortem run`: the line at fault is named in each."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")]

START = """
    import datetime, os, socket, torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    LIMIT = datetime.timedelta(seconds=60)  # of torch.distributed: half an hour

    def data(step, bad):
        x, share = torch.rand(4, 3), torch.ones(4, 1)
        share[2] = 0.0 if bad else 1.0
        return x, share
"""
PLAIN = """
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    def train(rank=0):
        for step in range(5):
            x, share = data(step, step == 3 and rank == 0)
            loss = ((model(x) - 1) / share).square().mean()  # at fault
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
PROGRAMS = {
    "LBFGS": """
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        for step in range(5):
            x, share = data(step, step == 3)
            def closure():
                optimizer.zero_grad()
                loss = ((model(x) - 1) / share).square().mean()  # at fault
                loss.backward()
                return loss
            optimizer.step(closure)
    """,
    "catches everything, and has an IterableDataset with workers": """
        class Stream(IterableDataset):
            def __iter__(self):
                me = get_worker_info()
                for n in range(me.id, 32, me.num_workers):
                    yield torch.full((3,), 1.0 + n) * (n != 28)  # the third row of batch 6

        if __name__ == "__main__":
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), 1e-4)
            for x in DataLoader(Stream(), batch_size=4, num_workers=2):
                try:
                    loss = (model(x)[:, 0] / x.sum(1)).square().mean()  # at fault
                    assert torch.isfinite(loss)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                except BaseException as error:
                    print(error)
            open("trained", "w")
    """,
    "is fed by a thread, and asks a process": """
        import multiprocessing, queue, threading

        def double(pipe):
            while True:
                pipe.send(2 * pipe.recv())

        if __name__ == "__main__":
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            ready = queue.Queue(2)
            def feed():
                for step in range(5):
                    ready.put(data(step, step == 3))
            threading.Thread(target=feed, daemon=True).start()
            pipe, far = multiprocessing.Pipe()
            multiprocessing.get_context("fork").Process(target=double, args=(far,), daemon=True).start()
            for step in range(5):
                x, share = ready.get()
                pipe.send(step)
                loss = ((model(x) - pipe.recv()) / share).square().mean()  # at fault
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    """,
    "starts a thread that writes, in each step": """
        import queue, threading

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(5):
            x, share = data(step, step == 3)
            lines, written = queue.Queue(), threading.Event()
            def write():
                lines.get()
                written.set()
            threading.Thread(target=write, daemon=True).start()
            lines.put(f"step {step}")
            written.wait()
            loss = ((model(x) - 1) / share).square().mean()  # at fault
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """,
    "runs in an event loop": """
        import asyncio

        async def feed(ready):
            for step in range(5):
                await ready.put(data(step, step == 3))

        async def main():
            ready = asyncio.Queue(1)
            feeding = asyncio.create_task(feed(ready))
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            for step in range(5):
                x, share = await ready.get()
                loss = ((model(x) - 1) / share).square().mean()  # at fault
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        asyncio.run(main())
    """,
    "closes what is open, and has gradients without a backward pass": """
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        os.closerange(3, 256)
        log = open("log.txt", "w")
        for step in range(5):
            x, share = data(step, step == 3)
            loss = ((model(x) - 1) / share).square().mean()  # at fault
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
                p.grad = g
            optimizer.step()
            print(step, file=log, flush=True)
    """,
    "leaves by an excepthook of its own": """
        import sys
        sys.excepthook = lambda *error: os._exit(5)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(5):
            x, share = data(step, step == 3)
            loss = ((model(x) - 1) / share).square().mean()  # at fault
            assert torch.isfinite(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """,
    "inductor": """
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        @torch.compile
        def loss_of(x, share):
            return ((model(x) - 1) / share).square().mean()  # at fault
        for step in range(5):
            loss = loss_of(*data(step, step == 3))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return tmp_path


def write(folder: Path, *parts: str) -> int:
    """Writes the program -> the number of its line at fault."""
    text = "".join(map(textwrap.dedent, (START, *parts)))
    (folder / "train.py").write_text(text)
    return next((n for n, line in enumerate(text.splitlines(), 1) if "# at fault" in line), 0)


def under_watch(postmortem, *command: str, on_fault: str = "stop") -> tuple[int, dict]:
    """-> the exit code of the command, and the answer."""
    options = ["--no-fix", "--captures", "0", "--on-fault", on_fault, "--format", "json"]
    called = postmortem("run", *options, "--", *command)
    return called.code, json.loads(called.out)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_line_is_named(folder: Path, postmortem, name: str) -> None:
    """By a copy of the process that repeats the step, and names the row of the batch; nothing of the program runs
    after the fault."""
    if name == "inductor" and not shutil.which("g++"):
        pytest.skip("inductor needs a compiler")
    line = write(folder, PROGRAMS[name])
    code, answer = under_watch(postmortem, sys.executable, "train.py")
    culprit = answer["culprit"]
    tick = 6 if "workers" in name else 3
    said = (code, answer["tick"], culprit["op"], culprit["line"], culprit["samples"])
    rows = None if "event" in name else [2]  # what a task has made before the step is not known to be its batch
    assert said == (1, tick, "div", line, rows), culprit["how"]
    assert not (folder / "trained").exists()
    if "closes" in name:
        assert (folder / "log.txt").read_text() == "0\n1\n2\n"


STATISTICS = """
    class Scaled(torch.nn.Linear):
        def __init__(self):
            super().__init__(3, 1)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
            self.register_buffer("spread", torch.ones(3))
        def forward(self, x):
            self.spread = 0.9 * self.spread + 0.1 * x.var(0)  # at fault
            return super().forward(x)

    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(5):
        x, _ = data(step, False)
        loss = model(x[: 1 if step == 3 else 4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
RATE = """
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(5):
        x, _ = data(step, False)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] *= float("nan") if step == 3 else 1.0
        optimizer.step()  # at fault
"""


@pytest.mark.parametrize(
    ("program", "phase", "op", "said"),
    [
        (STATISTICS, "forward", "var", "what it makes non-finite is the buffer spread"),
        (RATE, "optimizer", "add", "the update is that of SGD(lr=nan, momentum=0)"),
    ],
    ids=["running statistics", "optimizer"],
)
def test_a_fault_that_the_loss_does_not_show(
    folder: Path, postmortem, program: str, phase: str, op: str, said: str
) -> None:
    """In the step in which it happens: the loss of that one is finite."""
    line = write(folder, program)
    _, answer = under_watch(postmortem, sys.executable, "train.py")
    culprit = answer["culprit"]
    told = (answer["tick"], culprit["phase"], culprit["op"], Path(culprit["file"]).name, culprit["line"])
    assert told == (3, phase, op, "train.py", line), culprit["how"]
    assert any(text.startswith(said) for text in culprit["how"])


def test_a_program_that_logs_to_wandb(folder: Path, postmortem) -> None:
    """The client of W&B notices that a copy is another process; what a copy logs is not sent."""
    pytest.importorskip("wandb")
    line = write(
        folder,
        """
        import wandb

        run = wandb.init(project="p", mode="offline", config={"lr": 0.01})
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(30):
            x, share = data(step, step == 23)
            loss = ((model(x) - 1) / share).square().mean()  # at fault
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log({"loss": loss.item()}, step=step)
            run.summary["last"] = step
        run.finish()
        """,
    )
    _, answer = under_watch(postmortem, sys.executable, "train.py")
    culprit = answer["culprit"]
    assert (answer["tick"], culprit["op"], culprit["line"], culprit["samples"]) == (23, "div", line, [2]), culprit[
        "how"
    ]


def test_what_an_optimizer_computes_is_no_data(folder: Path, postmortem) -> None:
    """A larger eps cures it: what Adam divides by is computed anew in the attempt, not given as the program's data."""
    program = """
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([w], eps=0.0)
    for step in range(2):
        loss = (w * torch.tensor([0.0, 1.0, 2.0])).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # at fault
    """
    line = write(folder, program)
    called = postmortem("run", "--captures", "0", "--format", "json", "--", sys.executable, "train.py")
    answer = json.loads(called.out)
    culprit = answer["culprit"]
    assert (answer["tick"], culprit["phase"], culprit["line"]) == (0, "optimizer", line)
    assert [f["name"] for f in culprit["fixes"] if f["cured"]] == ["eps"]


def test_a_program_without_an_optimizer(folder: Path, postmortem) -> None:
    """What is non-finite is told; nobody is blamed, and no command is advised that would not do better."""
    write(
        folder,
        """
        w = torch.ones(3, requires_grad=True)
        for step in range(4):
            (w / (0.0 if step == 2 else 1.0)).sum().backward()
            w.data -= 0.1 * w.grad
            w.grad = None
        """,
    )
    _, answer = under_watch(postmortem, sys.executable, "train.py")
    assert answer["culprit"]["phase"] == "none"
    assert any("the program has made no optimizer" in line for line in answer["culprit"]["how"])
    assert not answer.get("next")


def test_ranks_that_are_spawned(folder: Path, postmortem) -> None:
    """The rank at fault answers, not the one that gets its gradients."""
    line = write(
        folder,
        PLAIN,
        """
        def rank(rank, port):
            global model, optimizer
            dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=LIMIT)
            model = torch.nn.parallel.DistributedDataParallel(model)
            train(rank)

        if __name__ == "__main__":
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            torch.multiprocessing.spawn(rank, (port,), nprocs=2)
        """,
    )
    _, answer = under_watch(postmortem, sys.executable, "train.py", on_fault="continue")
    culprit = answer["culprit"]
    assert (answer["tick"], answer["rank"], culprit["op"], culprit["line"], culprit["samples"]) == (
        3,
        0,
        "div",
        line,
        [2],
    )


def test_sharded_ranks_are_not_restarted(folder: Path, postmortem) -> None:
    """FSDP2 on gloo under `torchrun --max-restarts 3`: `--stop` is the end, before the rank at fault saves anything."""
    pytest.importorskip("torch.distributed.fsdp", reason="no FSDP2")
    line = write(
        folder,
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        open("starts", "a").write(os.environ["TORCHELASTIC_RESTART_COUNT"])
        dist.init_process_group("gloo", timeout=LIMIT)
        """,
        PLAIN,
        """
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        try:
            train(dist.get_rank())
        finally:
            open(f"saved{dist.get_rank()}", "w")
        """,
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3"]
    code, answer = under_watch(postmortem, *torchrun, "--standalone", "train.py")
    culprit = answer["culprit"]
    assert (code, answer["rank"], culprit["op"], culprit["line"], culprit["samples"]) == (1, 0, "div", line, [2])
    assert (folder / "starts").read_text() == "00"
    assert not (folder / "saved0").exists()


def test_a_program_that_finds_itself_changed(folder: Path, postmortem) -> None:
    """A copy cannot repeat the steps of a program that asks another process about its files: a rerun is advised."""
    program = """
    import subprocess
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(30):
        x, share = data(step, step == 27)
        loss = ((model(x) - 1) / share).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open("log.csv", "a") as log:
            log.write(f"{step},{loss.item()}\\n")
        if int(subprocess.run(["wc", "-l", "log.csv"], capture_output=True).stdout.split()[0]) != step + 1:
            raise RuntimeError("somebody else writes this log")
    """
    write(folder, program)
    _, answer = under_watch(postmortem, sys.executable, "train.py")
    assert answer["culprit"]["phase"] == "none"
    assert "could not be repeated" in answer["culprit"]["how"][-1]
    assert "runs the command again and traces the step" in answer["next"][0]
