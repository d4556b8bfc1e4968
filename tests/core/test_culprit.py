"""What a replay answers, as plain JSON."""

from __future__ import annotations

import json
import math
from dataclasses import fields

from postmortem.core.culprit import Culprit, Fidelity, Fix, ReplayResult


def test_a_culprit_is_strict_json_with_all_its_fields():
    """Fields keep their names and order; non-finite numbers are strings, tuples are lists."""
    found = Culprit(
        cause="forward-op",
        phase="forward",
        tensor={"output": {"max": math.inf, "min": math.nan}},
        samples=(1, 2),
        fixes=(Fix(name="eps", cured=True, how="kept away"),),
    )
    value = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert list(value) == [f.name for f in fields(Culprit)]
    assert value["tensor"] == {"output": {"max": "inf", "min": "nan"}}
    assert value["samples"] == [1, 2]
    assert value["fixes"] == [
        {
            "name": "eps",
            "cured": True,
            "how": "kept away",
            "loss": None,
            "far_from": None,
            "before": None,
            "ran": True,
            "note": "",
        }
    ]


def test_the_answer_of_a_replay_is_the_documented_object():
    """The culprit in it is the culprit's own JSON."""
    found = Culprit(cause="none", phase="none", how=("nothing",))
    answer = ReplayResult(
        target="run", recipe="r.py", checkpoint="c.pt", step=3, fidelity=Fidelity(ok=True), culprit=found
    )
    value = answer.as_json()
    assert list(value) == ["schema_version", "target", "step", "fidelity", "culprit", "next"]
    assert (value["step"], value["fidelity"]["ok"], value["culprit"]) == (3, True, found.as_json())
