"""Makes the sample runs: really trains each small model with the real writers, in seconds.

    python sample_runs/make.py              all of them, in place
    python sample_runs/make.py restart      one of them
    python sample_runs/make.py --into DIR   somewhere else

Each folder holds the training script as its user would write it (`train.py`), what happened (`README.md`), what a scan
must find (`expected.json`), and what the script left behind, which this program makes anew. Needs torch,
tensorboard and wandb. Seeds and the clock are fixed; names of machine, user and folders are taken out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = {"train.py", "recipe.py", "job.sh", "README.md", "expected.json"}
QUIET_WANDB = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_HOST": "node01",
    "WANDB_USERNAME": "user",
    "WANDB_RUN_ID": "a1b2c3d4",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
    "WANDB__DISABLE_STATS": "true",
    "WANDB__DISABLE_META": "true",
    "WANDB_X_DISABLE_STATS": "true",
    "WANDB_X_DISABLE_META": "true",
    "WANDB_X_DISABLE_MACHINE_INFO": "true",
}


def run(
    folder: Path, command: str, out: str = "/dev/null", err: str | None = None, clock: bool = True, code: int = 0
) -> None:
    """Runs a shell command in the folder as a user would; `out` and `err` take its streams (`err` None: in `out`).

    SystemExit where it does not end with `code`.
    """
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1"} | QUIET_WANDB
    if clock:
        env["PYTHONPATH"] = str(HERE / "_clock")
    with (folder / out).open("w") as stdout, (folder / (err or "/dev/null")).open("w") as stderr:
        done = subprocess.run(
            command, shell=True, cwd=folder, env=env, stdout=stdout, stderr=stderr if err else stdout, check=False
        )
    if done.returncode != code:
        raise SystemExit(f"{folder.name}: {command!r} ended with {done.returncode}, not {code}")


def nan_log_of_zero(folder: Path) -> None:
    run(folder, "python train.py")


def nan_empty_mask(folder: Path) -> None:
    run(folder, "bash job.sh", out="train.log")


def diverged_lr(folder: Path) -> None:
    run(folder, "python train.py", clock=False)
    wandb = folder / "wandb"
    (written,) = wandb.glob("offline-run-*")
    kept = wandb / "offline-run-20251105_000000-a1b2c3d4"
    (kept / "files").mkdir(parents=True)
    for file in ("run-a1b2c3d4.wandb", "files/output.log"):  # the rest describes the machine
        (written / file).rename(kept / file)
    shutil.rmtree(written)
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for link in wandb.iterdir():
        if link.is_symlink():
            link.unlink()


def gradient_spike(folder: Path) -> None:
    run(folder, "python train.py")


def plateau_lr_zero(folder: Path) -> None:
    run(folder, "python train.py", out="train.log")


def killed(folder: Path) -> None:
    run(folder, "bash job.sh", out="slurm-48151623.out")


def cuda_oom(folder: Path) -> None:
    run(folder, "python train.py", out="train.out", err="train.err", code=1)


def restart(folder: Path) -> None:
    run(folder, "python train.py; sleep 1; python train.py 120")
    (folder / "ckpt.pt").unlink()


def healthy_cosine_restarts(folder: Path) -> None:
    run(folder, "python train.py")


def healthy_fp16_scaler(folder: Path) -> None:
    run(folder, "python train.py", out="train.out")


def healthy_gan(folder: Path) -> None:
    run(folder, "python train.py")


SAMPLES = {
    f.__name__.replace("_", "-"): f
    for f in (
        nan_log_of_zero,
        nan_empty_mask,
        diverged_lr,
        gradient_spike,
        plateau_lr_zero,
        killed,
        cuda_oom,
        restart,
        healthy_cosine_restarts,
        healthy_fp16_scaler,
        healthy_gan,
    )
}


def scrub(folder: Path) -> None:
    """Gives files of the writers a fixed name and takes the machine and its folders out of texts."""
    for i, events in enumerate(sorted(folder.glob("events.out.tfevents.*"))):
        events.rename(folder / f"events.out.tfevents.{1_762_300_800 + 3600 * i}.node01.{4242 + i}.0")
    for path in folder.rglob("*"):
        if path.suffix in (".out", ".err", ".log") and path.is_file():
            text = path.read_text().replace(str(folder), "/home/user/exp")
            path.write_text(re.sub(r"(line \d+: +)\d+( Killed)", r"\g<1>4242\2", text))


def make(name: str, into: Path) -> Path:
    """Trains one sample into `into`/`name` -> that folder. What an earlier training left there is removed."""
    folder = (into / name).resolve()
    if into.resolve() != HERE.resolve():
        folder.mkdir(parents=True)
        for source in SOURCES & {p.name for p in (HERE / name).iterdir()}:
            shutil.copy(HERE / name / source, folder)
    for left in folder.iterdir():
        if left.name not in SOURCES:
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    SAMPLES[name](folder)
    scrub(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the sample runs.")
    parser.add_argument("names", nargs="*", choices=[*SAMPLES, []], help="which ones; all where none is named")
    parser.add_argument("--into", type=Path, default=HERE)
    args = parser.parse_args()
    for name in args.names or SAMPLES:
        folder = make(name, args.into)
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        print(f"{name}: {size / 1024:.0f} KiB", file=sys.stderr)


if __name__ == "__main__":
    os.umask(0o022)
    main()
