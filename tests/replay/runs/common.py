"""What the small trainings of this folder share: a CSV log and torch checkpoints."""

import csv
import json
import os

import torch

torch.set_num_threads(1)


class Log:
    """log(step, *values) appends a row to progress.csv; the keywords are written to config.json."""

    def __init__(self, out, names, **config):
        os.makedirs(out, exist_ok=True)
        with open(os.path.join(out, "config.json"), "w") as f:
            json.dump(config, f)
        self.path = os.path.join(out, "progress.csv")
        self("step", *names)

    def __call__(self, step, *values):
        with open(self.path, "a", newline="") as f:
            csv.writer(f).writerow([step, *values])


def save(out, step, model, optimizer, **more):
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, **more},
        os.path.join(out, f"step_{step:05d}.pt"),
    )
