"""Lines of models of sequences."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from postmortem.silent.source import called, place_of, source

if TYPE_CHECKING:
    from postmortem.silent.facts import Place
    from postmortem.silent.weight_facts import Probed

_ATTENTION = {"scaled_dot_product_attention", "softmax"}
_MASKS = {"masked_fill", "masked_fill_", "where"}


def attention_line(probed: Probed, masks: bool = False) -> Place | None:
    """Where the module that brings positions together does so: the attention, or (`masks`) the mask, in its forward;
    for a module of torch, where it is called."""
    if probed.inside is None:
        return probed.at
    read = source(probed.inside.file)
    function = next(
        (
            f
            for f in read.functions()
            if f.lineno <= probed.inside.line + 8 and f.name == "forward" and f.end_lineno >= probed.inside.line
        ),
        None,
    )
    nodes: list[Any] = list(ast.walk(function)) if function is not None else []
    for names in (_MASKS, _ATTENTION) if masks else (_ATTENTION,):
        found = [n for n in nodes if called(n) in names]
        if found:
            return place_of(probed.inside.file, min(found, key=lambda n: n.lineno))
    products = [n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult)]
    return place_of(probed.inside.file, products[0]) if products else probed.inside
