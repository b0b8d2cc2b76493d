"""The two sources of chance: a generator for initial weights, and a counter from which dropout's masks follow."""

from __future__ import annotations

import numpy as np


class _Chance:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dropout_offset = 0  # how many random numbers dropout has used of those that `seed` gives
        self.generator = np.random.default_rng(seed)


_chance = _Chance(seed=0)


def manual_seed(seed: int) -> None:
    """Start both sources anew; without this the seed is 0."""
    global _chance
    _chance = _Chance(seed)


def generator() -> np.random.Generator:
    """What initial weights are drawn from."""
    return _chance.generator


def take_dropout_numbers(count: int) -> tuple[int, int]:
    """Reserve `count` numbers of the counter-based stream; returns seed and offset of the first."""
    offset = _chance.dropout_offset
    _chance.dropout_offset += count
    return _chance.seed, offset


def get_rng_state() -> dict:
    """Both sources as plain values, for a checkpoint."""
    return {"seed": _chance.seed, "dropout_offset": _chance.dropout_offset,
            "generator": _chance.generator.bit_generator.state}


def set_rng_state(state: dict) -> None:
    """Restore what `get_rng_state` returned."""
    manual_seed(state["seed"])
    _chance.dropout_offset = state["dropout_offset"]
    _chance.generator.bit_generator.state = state["generator"]
