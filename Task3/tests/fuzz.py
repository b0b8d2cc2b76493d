"""Makes calls of every function of mytensor, right and wrong ones: python fuzz.py EXAMPLES LAST_CALL [NAME ...]

A right call returns, and gives the same with the variant in use and with the reference. A wrong one returns as well,
or raises ValueError or TypeError with a text. No call leaves a tensor behind. Ends with status 1 at the first that
does otherwise; where one ends the process, the file LAST_CALL tells which.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import mytensor
import numpy as np
from calls import REFUSED_HERE, RIGHT, Derived, Endless, Hostile, calls, calls_with_one_fault
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def t(*shape: int) -> mytensor.Tensor:
    return mytensor.Tensor.from_numpy(np.random.default_rng(len(shape)).uniform(0.2, 1.5, shape))


def last(*shape: int) -> mytensor.Tensor:
    return mytensor.nn.maxpool_forward(t(*shape), 1, 1, 1, 1, 0, 0)


NAMES = {"np": np, "mytensor": mytensor, "t": t, "last": last, "nan": float("nan"), "inf": float("inf"),
         "Decimal": Decimal, "Fraction": Fraction, "Derived": Derived, "endless": Endless(), "hostile": Hostile()}
VARIANTS = mytensor.cpu_variants()


def entry_points() -> set[str]:
    """The names of all that can be called in mytensor."""
    return {prefix + name for prefix, holder in (("", mytensor), ("nn.", mytensor.nn), ("Tensor.", mytensor.Tensor))
            for name in vars(holder) if callable(getattr(holder, name)) and not name.startswith("_")
            } | {"Tensor.__array__", "Tensor.__repr__"}


def arrays_in(value: object) -> list[np.ndarray]:
    """The values of all Tensors in nested lists and tuples."""
    if isinstance(value, mytensor.Tensor):
        return [value.numpy()]
    return [array for part in value for array in arrays_in(part)] if type(value) in (list, tuple) else []


def outcome(call: str, variant: str) -> tuple[list[np.ndarray] | None, str]:
    """The values that a call returns, after those of its arguments, as it leaves them; or none, and what it raises."""
    function, arguments = call.removesuffix(")").split("(", 1)
    given_ones = eval(f"[{arguments}]", NAMES)
    mytensor.set_cpu_variant(variant)
    try:
        result = eval(function, NAMES)(*given_ones)
        raised = ""
    except (TypeError, ValueError) as error:
        result, raised = None, f"{type(error).__name__}: {error}"
        assert str(error).strip(), f"{type(error).__name__} without a text"
    mytensor.set_cpu_variant(variant)
    return arrays_in([tensor for tensor in given_ones if holds_numbers(tensor)]) + arrays_in(result), raised


def holds_numbers(value: object) -> bool:
    """Not of a Tensor that was never initialised, in a list or alone."""
    parts = value if type(value) in (list, tuple) else [value]
    try:
        return all(part.shape() is not None for part in parts if isinstance(part, mytensor.Tensor))
    except TypeError:
        return False


def check(call: str, right: bool, variant: str, last_call: Path) -> None:
    last_call.write_text(f"{call} with the variant {variant}\n", encoding="utf-8")
    before = mytensor.live_tensors(), mytensor.memory_allocated()
    values, raised = outcome(call, variant)
    assert not (right and raised), raised
    expected, expected_raised = (values, "") if raised else outcome(call, "reference")
    assert not expected_raised, expected_raised
    for ours, theirs in zip(values, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * max(1, np.abs(theirs).max(initial=0)))
    del values, expected
    assert (mytensor.live_tensors(), mytensor.memory_allocated()) == before


def main(examples: int, last_call: Path, names: list[str]) -> None:
    assert entry_points() == {*RIGHT, *REFUSED_HERE}, entry_points() ^ {*RIGHT, *REFUSED_HERE}
    mytensor.set_num_threads(1)
    for name in names or [*RIGHT, *REFUSED_HERE]:

        @settings(derandomize=True, database=None, deadline=None, max_examples=examples,
                  suppress_health_check=list(HealthCheck))
        @given(call=calls(name), variant=st.sampled_from(VARIANTS))
        def try_out(call: tuple[str, bool], variant: str) -> None:
            check(*call, variant, last_call)

        try_out()
        for number, call in enumerate(calls_with_one_fault(name)):
            check(call, False, VARIANTS[number % len(VARIANTS)], last_call)


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
