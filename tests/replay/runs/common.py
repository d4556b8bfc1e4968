"""What the small trainings of this folder share: a CSV log and torch checkpoints."""

import csv
import json
import os

import torch

torch.set_num_threads(1)


class Log:
    def __init__(self, out, names, **config):
        os.makedirs(out, exist_ok=True)
        with open(os.path.join(out, "config.json"), "w") as f:
            json.dump(config, f)
        self.file = open(os.path.join(out, "progress.csv"), "a", newline="")  # noqa: SIM115
        self.csv = csv.writer(self.file)
        if not self.file.tell():
            self.csv.writerow(["step", *names])

    def __call__(self, step, *values):
        self.csv.writerow([step, *values])
        self.file.flush()


def save(out, step, model, optimizer, **more):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, **more}, os.path.join(out, f"step_{step:05d}.pt"))
