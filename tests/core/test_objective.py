"""Which metric is taken as the objective of a run that names no loss, and what is said of it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

import postmortem
from postmortem.core.objective import minimised
from postmortem.core.roles import role_of

N = 240
RNG = np.random.default_rng(3)
FALLS = (3 * np.exp(-np.arange(N) / 50) + 0.5) * np.exp(0.04 * RNG.standard_normal(N))
DIVERGES = FALLS * np.where(np.arange(N) < 150, 1, np.exp(0.15 * (np.arange(N) - 150.0)))
SMOOTH = 3 * np.exp(-np.arange(N) / 50) + 0.5

_LISTS = {
    "named": """
        perplexity | bits_per_dim | rmse | psnr | loss_scale | gloss | err_D | ce | mse_x10 | f1 | reward | nll |
        neg_elbo | cost | criterion | score | batch_cost | mean_iou | lr_g | bpd | return | val_acc | throughput |
        fps
    """,
    "presumed": """
        free_energy | obj | crit | J | L | E | F | energy | Energy | total_energy | E_loc | energy_value | chi2 |
        residual | misfit | inertia | stress | deviance | objf | f_obj | objval | fval | lagrangian | risk |
        J_total | mean_energy | train/energy | Zielfunktion | Zielwert | fehler | erreur | energy/train |
        distortion | discrepancy | deviance_train | model/J | foo | zz9 | my_metric | x
    """,
    "neither": """
        elbo | kl | commitment | margin | fid | edit_distance | Q | q_values | value | values | entropy |
        loss_weight/adv | lossless_ratio | time_loss | temperature | tau | td_error | KL_weight | beta | epsilon |
        fitness | win_rate | profit | likelihood | log_prob | similarity | cos_sim | correlation |
        generalization_gap | rate_distortion | opt_target | tokens_seen | queue_depth | buffer_size | eta_seconds |
        elapsed | timestamp | gpu_power | cpu_percent | noise_std | sigma | dropout | momentum | weight_decay |
        explore_prob | teacher_forcing | codebook_usage | dead_fraction | activation_std | logits/mean | advantage |
        value_std | param_norm | update_ratio | patience | retries | num_errors | energy_kwh | gpu_energy_joules |
        best_energy | clip_fraction | mask_ratio | curriculum_level | coverage | sparsity | condition_number |
        health | lives | elo | lr_mult
    """,
}
"""What decides -> names, between bars: the name alone; the name and values that fall; nothing, whatever the values."""
NAMES = {kind: [name.strip() for name in names.split("|") if name.strip()] for kind, names in _LISTS.items()}


def run_of(folder, sep=";", **columns):
    """A run of a table with these columns over steps."""
    rows = [sep.join(["step", *columns])]
    rows += [sep.join([str(i), *(f"{float(c[i]):.9g}" for c in columns.values())]) for i in range(N)]
    (folder / "run.csv").write_text("\n".join(rows) + "\n")
    return postmortem.load(folder / "run.csv")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_names_of_a_metric_that_behaves_as_a_loss(tmp_path, kind, name):
    """Logged at every step beside a learning rate, falling with noise: all that a loss does, under each name."""
    run = run_of(tmp_path, **{name: FALLS, "lr": np.full(N, 1e-3)})
    tag = next(tag for tag in run.roles if tag not in ("lr", "step"))
    assert ((role_of(tag) is not None), (tag in run.presumed)) == (kind == "named", kind == "presumed")
    if kind == "presumed":
        assert run.roles[tag] == "loss"


def test_the_table_is_large():
    """At least 80 names, most of them tricky."""
    assert sum(map(len, NAMES.values())) > 120


@pytest.mark.parametrize("name", NAMES["neither"])
def test_an_excluded_name_that_explodes_is_no_objective(tmp_path, name):
    """None of these names turns a run into a failed one by its values alone."""
    run = run_of(tmp_path, **{name: DIVERGES, "lr": np.full(N, 1e-3)})
    assert postmortem.judge(run).verdict != "failed"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"foo": FALLS}, {"foo": "likely"}),  # the only metric
        ({"foo": FALLS, "bar": 1 / FALLS, "lr": SMOOTH}, {"foo": "possible"}),
        ({"foo": FALLS, "bar": FALLS[::-1], "lr": SMOOTH}, {"foo": "possible"}),
        ({"foo": FALLS, "bar": FALLS * 2, "lr": SMOOTH}, {}),  # which of the two?
        ({"foo": FALLS, "bar": 1 / FALLS}, {}),  # no optimizer beside it
        ({"foo": SMOOTH}, {}),  # as a schedule does
        ({"foo": np.round(SMOOTH, 3)}, {}),
        ({"foo": [float(f"{x:.4g}") for x in np.exp(-np.arange(N) / 90)]}, {}),
        ({"foo": np.round(np.cos(np.linspace(0, 1.5, N)), 4)}, {}),
        ({"foo": SMOOTH * np.exp(0.002 * RNG.standard_normal(N))}, {"foo": "likely"}),  # it falls, but unevenly
        ({"foo": 1 / FALLS}, {}),
        ({"foo": np.floor(FALLS * 100)}, {}),  # a count
        ({"loss": FALLS, "energy": FALLS}, {}),
        ({"reward": 1 / FALLS, "energy": FALLS}, {}),  # of reinforcement learning
        ({"policy_foo": FALLS, "lr": SMOOTH}, {}),
        ({"train/foo": FALLS, "val/foo": FALLS, "bar": FALLS}, {"train/foo": "likely", "val/foo": "likely"}),
        ({"foo_train": FALLS, "foo_val": FALLS, "bar": FALLS}, {"foo_train": "likely", "foo_val": "likely"}),
        ({"energy": FALLS, "residual": FALLS}, {"energy": "likely"}),  # the whole before what may be a part
        ({"energy": FALLS, "energy_std": FALLS}, {"energy": "likely"}),
        ({"energy": 1 / FALLS, "lr": SMOOTH}, {}),  # it is maximised, or of something else
        ({"box": 1 / FALLS, "obj": FALLS, "cls": 1 / FALLS}, {}),  # the objectness of a detector
        ({"energy": DIVERGES}, {"energy": "likely"}),  # it fell before
    ],
)
def test_evidence(tmp_path, columns, expected):
    """What the other columns and the values say; several kinds of evidence are needed."""
    assert {tag: p.strength for tag, p in run_of(tmp_path, **columns).presumed.items()} == expected


def test_event_files_and_short_tables(tmp_path):
    """A TensorBoard run, and a table of one row per epoch, whose only metric has a name that nobody knows."""
    writer = SummaryWriter(str(tmp_path / "tb"))
    for i, x in enumerate(DIVERGES):
        writer.add_scalar("zorp", x, i)
    writer.close()
    short = 4 * np.exp(-np.arange(40) / 8) + 0.4 + np.where(np.arange(40) < 25, 0, np.exp((np.arange(40) - 25.0) / 3))
    short *= np.exp(0.02 * RNG.standard_normal(40))
    (tmp_path / "table").mkdir()
    rows = "".join(f"{i};{x:.5g}\n" for i, x in enumerate(short))
    (tmp_path / "table" / "log.csv").write_text("epoch;zorp\n" + rows)
    for run in postmortem.scan(tmp_path).runs:
        assert run.verdict == "failed", run.name
        assert "zorp, which looks like the objective, " in " ".join(f.message for f in run.findings)


def test_a_finding_of_a_presumed_objective_says_so(tmp_path):
    """The diverging run is failed, and neither finding nor diagnosis claims to know what the metric is."""
    report = postmortem.judge(run_of(tmp_path, zq=DIVERGES, lr=np.full(N, 1e-3)))
    finding = next(f for f in report.findings if f.name == "divergence")
    assert report.verdict == "failed"
    assert finding.message.startswith("zq, which looks like the objective, rises from")
    assert finding.evidence["presumed_role"] == "loss"
    assert "its values fall, with noise" in finding.evidence["presumed_because"]
    assert report.diagnosis.strength != "certain"
    assert any("no metric is named as a loss" in text for text in report.diagnosis.evidence_against)


def test_a_possible_objective_makes_a_run_suspect_only(tmp_path):
    """Where another metric might be the objective as well, its divergence is a warning."""
    report = postmortem.judge(run_of(tmp_path, zq=DIVERGES, other=1 / FALLS, lr=np.full(N, 1e-3)))
    assert report.verdict == "suspect"
    assert "divergence" in {f.name for f in report.findings}


def test_the_user_knows_better(tmp_path):
    """A role in the user's configuration ends the search."""
    run_of(tmp_path, energy=FALLS, entropy=FALLS)
    run = postmortem.load(tmp_path / "run.csv", roles={"entropy": "loss"})
    assert (run.roles["energy"], run.roles["entropy"], run.presumed) == (None, "loss", {})


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"trainer": {"monitor": "val/foo", "mode": "min"}}, ["val/foo"]),
        ({"metric": {"name": "foo", "goal": "minimize"}}, ["foo"]),
        ({"metric": {"value": {"name": "foo", "goal": "minimize"}}}, ["foo"]),
        ({"metric_for_best_model": "eval_foo", "greater_is_better": False}, ["eval_foo"]),
        ({"monitor": "foo", "mode": "max"}, []),
        ({"monitor": "foo"}, []),
        ({"a": {"mode": "min"}, "b": {"monitor": "foo"}}, []),
        ({"mode": "min", "monitor": 3}, []),
    ],
)
def test_what_a_configuration_minimises(config, names):
    """A metric and a direction at one level of the settings."""
    assert list(minimised(config)) == names


def test_a_configuration_decides(tmp_path):
    """What the settings minimise is the objective, although its values do not fall."""
    (tmp_path / "config.json").write_text(json.dumps({"monitor": "val/zq", "mode": "min"}))
    rows = "".join(f'{{"step": {i}, "val/zq": {2 + i / 9}, "train/zq": {x}}}\n' for i, x in enumerate(FALLS))
    (tmp_path / "log.jsonl").write_text(rows)
    run = postmortem.load(tmp_path)
    assert (run.roles["val/zq"], run.roles["train/zq"]) == ("val_loss", "loss")
