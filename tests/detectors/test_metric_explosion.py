"""A metric of unknown role that explodes and stays."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.metric_explosion import MetricExplosion
from tests.detectors.cases import N, fires, noise, quiet

STEADY = 2 * noise(0.2)
EXPLODES = STEADY * np.where(np.arange(N) < 250, 1, np.minimum(np.exp(0.5 * (np.arange(N) - 250.0)), 1e9))


@fires(MetricExplosion, step=254)
def an_activation_that_explodes(base):
    return base | {"block7/act_std": (np.arange(N), EXPLODES)}


@fires(MetricExplosion)
def a_quantity_without_a_loss(base):
    return {"kappa": (np.arange(N), -EXPLODES)}


@fires(MetricExplosion)
def a_perplexity_that_explodes(base):
    return {"ppl": (np.arange(N), EXPLODES)}


@fires(MetricExplosion)
def a_divergence_between_policies(base):
    return base | {"approx_kl": (np.arange(N), EXPLODES * 1e-2)}


@quiet(MetricExplosion)
def a_spike_that_recovers(base):
    values = STEADY.copy()
    values[200:230] = 1e9
    return base | {"kappa": (np.arange(N), values)}


@quiet(MetricExplosion)
def names_of_what_may_grow(base):
    names = "tokens_seen queue_len kl_weight temperature elapsed game_reward bytes_read gpu_power fitness score_raw"
    return base | {name: (np.arange(N), EXPLODES) for name in names.split()} | {"kappa": (np.arange(N), STEADY)}


@quiet(MetricExplosion)
def counters_and_schedules(base):
    n = np.arange(N)
    return base | {
        "seen": (n, np.exp(n / 20.0)),
        "zq_count": (n, np.floor(EXPLODES)),
        "kappa": (n, np.floor(EXPLODES)),
        "annealed": (n, np.geomspace(1e-6, 1e6, N)),
        "ramp": (n, np.where(n < 200, 1e-4, 1e5)),
    }


@quiet(MetricExplosion)
def growth_from_next_to_nothing(base):
    return base | {"knowledge": (np.arange(N), 1e-3 * EXPLODES / EXPLODES.max() + 1e-9 * noise())}


@quiet(MetricExplosion)
def growth_without_a_level(base):
    """It grows at the same pace from the start: nothing shows that this is a fault."""
    return base | {"kappa": (np.arange(N), np.geomspace(1, 1e8, N) * noise(0.3))}
