"""Generated runs with known faults: is each fault found at its step, and nothing else?

    python benchmarks/own_runs.py [--seeds 3]

Small real trainings in numpy (softmax regression, matrix factorisation, a tanh autoencoder), logged every step, every
fifth step or as means of ten, in which one fault is switched on at a known step or none. Loss, gradient norm and
validation loss come from the training; times and memory from a modelled machine.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from postmortem.core.points import PointsBuilder
from postmortem.core.run import Run, Stream, segments
from postmortem.core.view import View
from postmortem.detectors import DETECTORS, NotChecked


@dataclass(frozen=True)
class Made:
    """A run and what is wrong with it: the names that are right, and the steps between which they are."""

    label: str
    view: View
    names: tuple[str, ...]
    first: int = 0
    last: int = 0


class Softmax:
    """Softmax regression on overlapping clusters."""

    rate, classes, dim = 0.5, 7, 12

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.centres = rng.standard_normal((self.classes, self.dim))
        self.w = [0.01 * rng.standard_normal((self.dim, self.classes))]
        self.train, self.held_out = self._data(2000), self._data(400)

    def _data(self, rows: int) -> Any:
        y = self.rng.integers(0, self.classes, rows)
        return self.centres[y] + 0.9 * self.rng.standard_normal((rows, self.dim)), y

    def batch(self, size: int) -> Any:
        at = self.rng.integers(0, len(self.train[1]), size)
        return self.train[0][at], self.train[1][at]

    def spoiled(self, data: Any) -> Any:
        return 25 * data[0], data[1]

    def loss(self, data: Any) -> tuple[float, list[Any]]:
        x, y = data
        z = x @ self.w[0]
        z = z - z.max(axis=1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        value = float(-np.log(p[np.arange(len(y)), y] + 1e-12).mean())
        p[np.arange(len(y)), y] -= 1
        return value, [x.T @ p / len(y)]


class Factorisation:
    """Matrix factorisation by stochastic gradient descent."""

    rate, rank, size = 0.4, 4, 40

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        truth = rng.standard_normal((self.size, self.rank)) @ rng.standard_normal((self.rank, self.size)) / 2
        self.noisy = truth + 0.3 * rng.standard_normal(truth.shape)
        self.w = [0.3 * rng.standard_normal((self.size, self.rank)), 0.3 * rng.standard_normal((self.rank, self.size))]
        self.train, self.held_out = self._data(2000), self._data(800)

    def _data(self, rows: int) -> Any:
        return self.rng.integers(0, self.size, rows), self.rng.integers(0, self.size, rows), None

    def batch(self, size: int) -> Any:
        at = self.rng.integers(0, len(self.train[0]), size)
        return self.train[0][at], self.train[1][at], None

    def spoiled(self, data: Any) -> Any:
        return data[0], data[1], self.noisy[data[0], data[1]] + 8

    def loss(self, data: Any) -> tuple[float, list[Any]]:
        i, j, target = data
        u, v = self.w
        target = self.noisy[i, j] if target is None else target
        off = (u[i] * v[:, j].T).sum(axis=1) - target
        gu, gv = np.zeros_like(u), np.zeros_like(v)
        np.add.at(gu, i, off[:, None] * v[:, j].T * 2 * self.size / len(i) / 10)
        np.add.at(gv.T, j, off[:, None] * u[i] * 2 * self.size / len(i) / 10)
        return float((off**2).mean()), [gu, gv]


class Autoencoder:
    """A tanh autoencoder of correlated data."""

    rate, dim, code = 0.1, 16, 5

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.mix = rng.standard_normal((6, self.dim)) / 2
        self.w = [0.3 * rng.standard_normal((self.dim, self.code)), 0.3 * rng.standard_normal((self.code, self.dim))]
        self.train, self.held_out = self._data(2000), self._data(400)

    def _data(self, rows: int) -> Any:
        return self.rng.standard_normal((rows, 6)) @ self.mix + 0.2 * self.rng.standard_normal((rows, self.dim))

    def batch(self, size: int) -> Any:
        return self.train[self.rng.integers(0, len(self.train), size)]

    def spoiled(self, data: Any) -> Any:
        return 4 * data

    def loss(self, x: Any) -> tuple[float, list[Any]]:
        h = np.tanh(x @ self.w[0])
        off = h @ self.w[1] - x
        back = (2 * off / len(x)) @ self.w[1].T * (1 - h**2)
        return float((off**2).sum(axis=1).mean()), [x.T @ back, h.T @ (2 * off / len(x))]


MODELS = {"softmax": Softmax, "factorisation": Factorisation, "autoencoder": Autoencoder}


def train(kind: str, fault: str, seed: int, steps: int, at: int) -> dict[str, Any]:
    """Trains a model with `fault` from step `at` on -> {tag: values} for every step, NaN where nothing is logged."""
    rng = np.random.default_rng(seed)
    model = MODELS[kind](rng)
    tags = {tag: np.full(steps, np.nan) for tag in ("train/loss", "train/grad_norm", "lr", "val/loss")}
    momentum = [np.zeros_like(w) for w in model.w]
    gain = 1.0
    for k in range(steps):
        rate = learning_rate(model.rate, fault, k, steps, at)
        on = k >= at
        data = model.batch(32)
        if fault == "loss-spike" and k == at:
            data = model.spoiled(data)
        with np.errstate(all="ignore"):
            loss, grads = model.loss(data)
            if fault == "nan-onset" and on:
                loss = np.nan
                grads = [g * np.nan for g in grads]
            if fault == "gradient-vanishing" and on:
                gain *= 0.9
            if fault == "gradient-explosion" and on:
                gain = min(gain * 1.15, 300.0)
            grads = [g * gain for g in grads]
            norm = logged_norm(grads, fault, k, at)
            limit = min(1.0, 20 / norm) if norm > 0 and fault not in ("divergence", "nan-onset") else 1.0
            for w, m, g in zip(model.w, momentum, grads, strict=True):
                m *= 0.5
                m += g * (1.0 if np.isnan(norm) and fault == "gradient-nan" else limit)
                w -= rate * 0.1 * m
            if k % 20 == 19:
                tags["val/loss"][k] = model.loss(model.held_out)[0]
        tags["train/loss"][k], tags["train/grad_norm"][k], tags["lr"][k] = loss, norm, rate
    return tags | machine(rng, fault, steps, at)


def learning_rate(base: float, fault: str, k: int, steps: int, at: int) -> float:
    """The learning rate of step k: warm-up, then a cosine, changed by `fault` from step `at` on."""
    if fault == "lr-jump":  # the schedule starts again
        return base * (0.55 + 0.45 * np.cos(np.pi * min(1.0, (k if k < at else k - at) / (0.6 * steps))))
    rate = base * min(1.0, (k + 1) / 20) * (1.0 if fault == "divergence" else 0.6 + 0.4 * np.cos(np.pi * k / steps))
    if fault == "divergence" and k >= at:
        rate *= 1.02 ** (k - at)
    return 0.0 if fault == "lr-zero" and k >= at else rate


def logged_norm(grads: list[Any], fault: str, k: int, at: int) -> float:
    """The norm of the gradients, as logged under `fault`."""
    norm = float(np.sqrt(sum((g**2).sum() for g in grads)))
    if fault == "gradient-spike" and k == at:
        norm *= 60
    return np.nan if fault == "gradient-nan" and k >= at else norm


def machine(rng: np.random.Generator, fault: str, steps: int, at: int) -> dict[str, Any]:
    """Times and host memory of every step, changed by `fault` from step `at` on."""
    t = np.arange(steps)
    step_time = 0.3 * np.exp(0.04 * rng.standard_normal(steps)) * np.where(t < 3, 8, 1)
    data_time = 0.02 * np.exp(0.25 * rng.standard_normal(steps))
    memory = 30 * (1 - 0.4 * np.exp(-t / (steps / 40))) + 0.1 * rng.standard_normal(steps)
    if fault == "throughput-drop":
        step_time[at:] *= 1.9
    if fault == "dataloader-stall":
        slow = np.unique(at + np.cumsum(rng.integers(7, 60, 8)) - 7)
        slow = np.r_[at, slow[(slow > at) & (slow < steps)]]
        data_time[slow] += rng.uniform(3, 9, len(slow))
        step_time += data_time * (data_time > 1)
    if fault == "memory-growth":
        memory += np.maximum(0, t - at) * 20 / steps
    return {"step_time": step_time, "data_time": data_time, "host_mem_gb": memory}


# fault -> names that are right, and how far after the onset a report may be, as a share of the run
FAULTS = {
    "nan-onset": (("nan-onset",), 0.0),
    "gradient-nan": (("nan-onset", "nonfinite-gradient"), 0.0),
    "loss-spike": (("loss-spike", "gradient-spike"), 0.0),
    "gradient-spike": (("gradient-spike",), 0.0),
    "divergence": (("divergence", "loss-spike", "gradient-explosion", "nan-onset", "inf-onset"), 0.6),
    "lr-jump": (("lr-jump",), 0.0),
    "lr-zero": (("lr-zero", "loss-plateau"), 0.0),
    "gradient-explosion": (("gradient-explosion",), 0.15),
    "gradient-vanishing": (("gradient-vanishing",), 0.15),
    "throughput-drop": (("throughput-drop",), 0.0),
    "dataloader-stall": (("dataloader-stall",), 0.0),
    "memory-growth": (("memory-growth",), 0.25),
    "step-reset": (("step-reset",), 0.0),
    "none": ((), 0.0),
}
RELATED = {
    "nan-onset": {"nonfinite-gradient"},
    "gradient-nan": {"nonfinite-gradient", "nan-onset"},
    "lr-jump": {"loss-spike", "gradient-spike"},
    "lr-zero": {"loss-plateau", "constant-metric"},
    "gradient-explosion": {"divergence", "loss-spike", "gradient-spike", "gradient-vanishing", "overfitting"},
    "gradient-vanishing": {"loss-plateau", "constant-metric"},
    "divergence": {
        "gradient-spike",
        "gradient-explosion",
        "loss-spike",
        "nan-onset",
        "inf-onset",
        "nonfinite-gradient",
        "overfitting",
    },
    "dataloader-stall": {"throughput-drop"},
}


def as_view(tags: dict[str, Any], every: int, restart_at: int | None = None) -> View:
    """Logged every `every`-th step (10: as means of ten); with a restart that repeats a tenth of the run."""
    builder = PointsBuilder()
    n = len(tags["train/loss"])
    for tag, value in tags.items():
        if tag == "val/loss":
            step = np.arange(19, n, 20)
            x = value[step]
        elif every == 10:
            step, x = np.arange(9, n, 10), value[: n // 10 * 10].reshape(-1, 10).mean(axis=1)
        else:
            step = np.arange(every - 1, n, every)
            x = value[step]
        if restart_at is not None:
            back = restart_at - n // 10
            order = np.r_[np.flatnonzero(step < restart_at), np.flatnonzero(step >= back)]
            step, x = step[order], x[order]
        builder.extend(tag, step, x)
    points = builder.build()
    segment, restarts = segments(points)
    return View(
        Run(
            name="own",
            path=Path("own"),
            streams=[Stream("csv", "own", points, segment, restarts)],
            event_list=[],
            problems=[],
            sources=[],
        )
    )


def runs(seeds: int = 1) -> list[Made]:
    """Every fault and none, on every model, in three ways of logging: 42 runs for each seed."""
    made = []
    for seed in range(seeds):
        for m, kind in enumerate(MODELS):
            for f, (fault, (names, share)) in enumerate(FAULTS.items()):
                steps, every = (600, 900, 1500)[(m + f) % 3], (1, 5, 10)[(m + f + seed) % 3]
                at = (steps // 2 + 7) // every * every + every - 1  # a step that is logged
                restart = at if fault == "step-reset" else None
                tags = train(kind, fault, 1000 * seed + 10 * m + f, steps, at)
                first = at - steps // 10 - every if restart else at - every - (steps // 100 if share else 0)
                last = at - steps // 10 + every if restart else at + int(share * steps) + every
                made.append(Made(f"{fault} {kind} every {every}", as_view(tags, every, restart), names, first, last))
    return made


def judged(made: Made) -> tuple[bool, list[str]]:
    """Whether the fault was found at its step, and which other findings are above info."""
    found = []
    for detector in DETECTORS:
        try:
            # a resume whose steps repeat their values, as here, is told as info
            answers = detector(detector.Options()).detect(made.view)
            found += [f for f in answers if f.severity != "info" or f.name == "step-reset"]
        except NotChecked:
            continue
    fault = made.label.split()[0]
    hit = not made.names or any(
        f.name in made.names and f.step is not None and made.first <= f.step <= made.last for f in found
    )
    allowed = {*made.names, *RELATED.get(fault, set())}
    return hit, [f"{f.name} {f.tag} @{f.step}: {f.message}" for f in found if f.name not in allowed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    made = runs(parser.parse_args().seeds)
    hits: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    alarms = 0
    for run in made:
        hit, others = judged(run)
        fault = run.label.split()[0]
        asked[fault] += 1
        hits[fault] += hit and not (fault == "none" and others)
        alarms += bool(others)
        if not hit or others:
            print(run.label, "" if hit else f"MISSED (steps {run.first}..{run.last})", *others, sep="\n    ")
    for fault in FAULTS:
        print(f"{fault:20s} {hits[fault]:3d} of {asked[fault]}")
    print(f"{len(made)} runs: {sum(hits.values())} right, other alarms in {alarms}")


if __name__ == "__main__":
    main()
