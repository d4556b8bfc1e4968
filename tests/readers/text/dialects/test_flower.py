"""The server of a federated training."""

from __future__ import annotations

from pathlib import Path

import pytest

import postmortem

PREFIX = "INFO 2026-11-20 12:00:{:02d},104 | server.py:89 | "


def log(values: list[str]) -> str:
    rows = ["Starting server, config: num_rounds=25", "[INIT]"]
    rows.append("initial parameters (loss, other metrics): 2.3026, {'accuracy': 0.1}")
    for i, value in enumerate(values, 1):
        rows += [
            "",
            f"[ROUND {i}]",
            "configure_fit: strategy sampled 4 clients (out of 6)",
            "aggregate_fit: received 4 results and 0 failures",
            f"fit progress: ({i}, {value}, {{'accuracy': {i / 40:.4f}}}, {i * 1.5:.3f})",
        ]
    return "".join(PREFIX.format(i % 60) + row + "\n" for i, row in enumerate(rows))


@pytest.mark.parametrize("prefixed", [True, False])
def test_the_rounds_of_the_server_are_its_steps(tmp_path: Path, prefixed: bool) -> None:
    values = [f"{2 / i:.6f}" for i in range(1, 13)]
    text = log(values)
    if not prefixed:
        text = text.replace(PREFIX[:5], "").replace("server.py:89 | ", "")
    (tmp_path / "server.log").write_text(text)
    run = postmortem.load(tmp_path / "server.log")
    loss = run.frame[run.frame.tag == "centralized eval loss"]
    assert loss.step.tolist() == list(range(13))
    assert loss.value.tolist() == [2.3026, *map(float, values)]
    assert run.frame[run.frame.tag == "accuracy"].step.tolist() == list(range(13))
    assert dict(run.roles)["centralized eval loss"] == "val_loss"


def test_a_nan_of_the_server_is_found(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(log(["0.9", "0.8", "0.7", "0.65", "0.6", "nan", "nan", "nan"]))
    (run,) = postmortem.scan(tmp_path).runs
    assert run.verdict == "failed"
