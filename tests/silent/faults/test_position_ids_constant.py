"""One position for all tokens."""

from __future__ import annotations

from postmortem.silent.faults.position_ids_constant import PositionIdsConstant
from tests.silent.faults.cases import blamed, quiet
from tests.silent.faults.sequence_programs import language_model


@blamed(PositionIdsConstant, at="self.pos(torch.zeros_like(ids))")
def position_zero() -> str:
    return language_model(embedded="self.table(ids) + self.pos(torch.zeros_like(ids))")


@blamed(PositionIdsConstant, at="self.pe[:ids.shape[0]]")
def positions_along_the_batch() -> str:
    return language_model(
        positions="self.pe = nn.Parameter(torch.randn(32, 1, WIDTH))",
        embedded="self.table(ids) + self.pe[:ids.shape[0]]",
    )


@quiet(PositionIdsConstant)
def positions_in_order() -> str:
    return language_model()


@quiet(PositionIdsConstant)
def no_positions_at_all() -> str:
    return language_model(positions="pass", embedded="self.table(ids)")


@quiet(PositionIdsConstant)
def a_set_model_with_a_positionwise_layer() -> str:
    positions = "self.pos_ffn = nn.Linear(WIDTH, WIDTH)"
    return language_model(positions=positions, embedded="self.pos_ffn(self.table(ids))")


@quiet(PositionIdsConstant)
def positions_that_start_at_zero() -> str:
    return language_model(
        positions="self.pos = nn.Parameter(torch.zeros(LENGTH, WIDTH))", embedded="self.table(ids) + self.pos"
    )


@quiet(PositionIdsConstant)
def a_position_that_is_none_of_tokens() -> str:
    """The post of a person, one for each sample."""
    return language_model(
        positions="self.position = nn.Embedding(3, WIDTH)",
        embedded="self.table(ids) + self.position(ids[:, 0] % 3).unsqueeze(1)",
    )
