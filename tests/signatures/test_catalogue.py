"""The catalogue of failures: every entry against its own examples and all the others."""

import re
from dataclasses import replace
from typing import Any

import pytest

from postmortem.core.errors import UsageError
from postmortem.signatures import CATALOGUE, Catalogue, Signature, advice, advices, page

ENTRIES = list(CATALOGUE.values())
EXAMPLES = [(s, e) for s in ENTRIES for e in s.examples]


def test_families_are_there() -> None:
    """All families of failures have entries, and ids are kebab-case."""
    assert {s.family for s in ENTRIES} >= {
        "memory",
        "autograd",
        "numbers",
        "distributed",
        "cuda",
        "compile",
        "data",
        "checkpoints",
        "scheduler",
    }
    assert len(ENTRIES) > 120
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", s.id) for s in ENTRIES)


@pytest.mark.parametrize(("signature", "example"), EXAMPLES, ids=[f"{s.id}-{i}" for i, (s, _) in enumerate(EXAMPLES)])
def test_an_example_matches_its_own_entry_only(signature: Signature, example: str) -> None:
    """The first line of each example is matched by its entry, and by no other of the same or a higher rank."""
    line = example.split("\n")[0]
    matches = [s for s in ENTRIES if s.match(line) is not None]
    assert signature in matches
    assert [s.id for s in matches if s.rank >= signature.rank] == [signature.id]
    found = CATALOGUE.match(line, exception=signature.scope != "line")
    assert found is not None
    assert found[0] is signature


@pytest.mark.parametrize("anchor", ["", "G", "GPU", "CUDA", "CUDA out of memory"])
def test_an_anchor_of_any_length_leads_to_its_entry(anchor: str) -> None:
    catalogue, entry = Catalogue(), CATALOGUE["cuda-oom"]
    vars(catalogue)["_entries"] = {entry.id: replace(entry, anchors=(anchor,))}
    found = catalogue.match(entry.examples[0], exception=True)
    assert found is not None
    assert found[0].id == entry.id


@pytest.mark.parametrize("signature", ENTRIES, ids=lambda s: s.id)
def test_an_entry_is_complete(signature: Signature) -> None:
    """Each entry explains itself, and its page shows meaning, remedy, evidence, pattern and example."""
    assert signature.meaning
    assert signature.fixes
    assert signature.evidence
    assert signature.severity in ("error", "warning", "info")
    groups = {name for p in (*signature.patterns, *signature.details) for name in p.groupindex}
    assert set(signature.fields) <= groups, "a field type without a group of that name"
    shown = page(signature)
    assert all(
        part in shown
        for part in (signature.id, signature.meaning, signature.examples[0], signature.patterns[0].pattern)
    )


def test_a_claim_is_no_surer_than_the_entry() -> None:
    """What a message only usually means is introduced as such; exceptions without an entry claim nothing."""
    assert CATALOGUE["cuda-oom"].claim == CATALOGUE["cuda-oom"].meaning
    assert CATALOGUE["stale-handle"].claim.startswith("Usual meaning of this message: ")
    assert CATALOGUE["generic-exception"].claim == ""


@pytest.mark.parametrize("signature", ENTRIES, ids=lambda s: s.id)
def test_no_pattern_has_an_unbounded_dot(signature: Signature) -> None:
    """A dot reaches only so far; what repeats cost is counted in tests/readers/test_backtracking.py."""
    for pattern in (*signature.patterns, *signature.details):
        text = re.sub(r"\\.|\[[^\]]*\]", "x", pattern.pattern)
        assert not re.search(r"\.[*+]", text), pattern.pattern


@pytest.mark.parametrize(
    "line",
    [
        "number of nan iterations:   0 |",
        "step 12 loss 2.31 grad_norm 0.4",
        "error_if_nonfinite=False, max_error: 0.1",
        "INFO - args: killed=False, out_of_memory_retries=3",
        "{'loss': '2.31', 'grad_norm': '1.2', 'learning_rate': '1e-05', 'epoch': '0.1'}",
        "Unable to initialize backend 'tpu': INTERNAL: libtpu.so: cannot open shared object file: No such file or "
        "directory",
        "0it [00:00, ?it/s]",
        "Found 1000 images in data/train",
        "validation error: 0.31",
        "Loading 10 samples",
        "Phase 2 | step 10 | loss 0.5",
        "[Stage 0:>                                             (0 + 8) / 8]",
        "[INFO] [utils.py:30:see_memory_usage] Stage 3 initialize beginning",
        "Creating torch.bfloat16 ZeRO stage 3 optimizer",
        "unfreeze_epoch: 10",
        "Start training the model of epoch 300",
        "Stage 3: evaluation",
        "torch.cumprod not supported on MPS, switching to CPU.",
    ],
)
def test_harmless_lines_match_nothing(line: str) -> None:
    """Words of failures in harmless lines are left alone."""
    assert CATALOGUE.match(line) is None


def test_sizes_become_bytes_and_stay_as_printed() -> None:
    """A size of a message is an int of bytes, and the number that was printed under its unit."""
    text = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 1; 10.00 GiB total capacity; "
        "8.25 GiB already allocated; 512.00 MiB free; 9.00 GiB reserved in total by PyTorch)"
    )
    signature = CATALOGUE["cuda-oom"]
    fields = signature.detail(text) | (signature.match(text) or {})
    assert fields["requested_bytes"] == 1_610_612_736
    assert fields["requested_gib"] == 1.5
    assert (fields["gpu"], fields["free_mib"], fields["total_gib"], fields["reserved_gib"]) == (1, 512.0, 10.0, 9.0)


def test_fields_are_typed() -> None:
    """Shapes are lists of ints, counts ints, names words."""
    keys = CATALOGUE["ckpt-keys"]
    found = keys.detail(keys.examples[0])
    assert found["missing"] == ["wte.weight", "wpe.weight"]
    assert found["checkpoint_shape"] == [50257, 768]
    assert CATALOGUE["mat-shapes"].match("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)") == {
        "a_rows": 1,
        "a_cols": 2,
        "b_rows": 3,
        "b_cols": 4,
    }


def test_an_unknown_id_suggests_the_nearest() -> None:
    """A typing error names what was probably meant."""
    with pytest.raises(UsageError, match="did you mean 'cuda-oom'"):
        CATALOGUE["cuda-om"]


def test_an_unknown_id_can_be_asked_for() -> None:
    """`get` answers None where there is no such entry, as of any mapping."""
    assert CATALOGUE.get("None") is None
    assert CATALOGUE.get("cuda-oom") is CATALOGUE["cuda-oom"]


@pytest.mark.parametrize("known", advices(), ids=lambda a: a.example)
def test_an_unknown_exception_gets_the_advice_for_its_class(known: Any) -> None:
    """Each example gets its own advice and no more special one, and no entry of the catalogue but the general one knows
    it."""
    name, _, message = known.example.partition(": ")
    assert advice(name, message) == known.fixes
    found = CATALOGUE.match(known.example, exception=True)
    assert found is not None
    assert found[0].id == "generic-exception"
    assert known.example in page(found[0])


def test_an_exception_of_a_class_of_ones_own_gets_no_advice() -> None:
    """Nothing is made up about a class that nobody knows."""
    assert advice("MyError", "bad") == ()
    assert advice("RuntimeError", "no relationship between a and b") == ()
