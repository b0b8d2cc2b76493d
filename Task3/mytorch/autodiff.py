"""Gradients by reverse-mode differentiation: the order of the graph's nodes, and one walk backwards along it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mytorch.tensor import Tensor, Value


class _Mode(threading.local):
    no_grad_depth = 0  # of this thread: how many `no_grad` are open in it


_mode = _Mode()


def is_grad_enabled() -> bool:
    """Whether operators record the graph in this thread."""
    return _mode.no_grad_depth == 0


# A function of one of these kinds returns before its body has run.
_RUNS_LATER = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


class no_grad:  # noqa: N801 (PyTorch's name)
    """Inside it operators record no graph: `with no_grad(): ...`, or `@no_grad()` above a function.

    It counts how deep it is nested and restores no earlier state, so the order in which nested, recursive or
    suspended uses end does not matter.
    """

    def __enter__(self) -> None:
        _mode.no_grad_depth += 1

    def __exit__(self, *exception: object) -> None:
        _mode.no_grad_depth -= 1

    def __call__(self, function: Callable) -> Callable:
        if any(runs_later(function) for runs_later in _RUNS_LATER):
            raise TypeError(f"no_grad cannot decorate {function.__name__}, a generator or coroutine: its body runs "
                            "later; write 'with no_grad():' around what it computes between two yields or awaits")

        @functools.wraps(function)
        def without_graph(*args, **kwargs):
            with self:
                return function(*args, **kwargs)

        return without_graph


def find_topo_sort(outputs: Sequence[Value]) -> list[Value]:
    """All nodes that `outputs` depend on, each once and after all its inputs.

    A depth-first walk with its own stack: a graph may be far deeper than Python's recursion limit.
    """
    order: list[Value] = []
    seen: set[int] = set()  # by identity: a node's value says nothing about which node it is
    stack = [(node, False) for node in reversed(outputs)]
    while stack:
        node, inputs_are_done = stack.pop()
        if inputs_are_done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((value, False) for value in reversed(node.inputs))
    return order


def compute_gradient_of_variables(output: Tensor, out_grad: Tensor | None = None) -> None:
    """Add the gradient of `output`, weighted by `out_grad`, to the `grad` of every leaf that it depends on.

    `out_grad` has the shape of `output`; None means 1 and is for outputs of one number. Only leaves that require
    gradients get them. `grad` is replaced by the sum, never written into: it may share its memory.
    """
    with no_grad():
        for node, gradient in _walk_back(output, out_grad):
            if node.op is None:
                node.grad = gradient if node.grad is None else node.grad + gradient


def grad(output: Tensor, inputs: Sequence[Tensor], out_grad: Tensor | None = None,
         create_graph: bool = False) -> list[Tensor]:
    """The gradients of `output`, weighted by `out_grad`, with respect to `inputs` (leaves or not); sets no `grad`.

    With `create_graph` the gradients are nodes of a graph themselves and can be differentiated again.
    """
    wanted = {id(value) for value in inputs}
    with contextlib.nullcontext() if create_graph else no_grad():
        found = {id(node): gradient for node, gradient in _walk_back(output, out_grad) if id(node) in wanted}
        return [found[id(value)] if id(value) in found else value.full_like(0.0) for value in inputs]


def _walk_back(output: Tensor, out_grad: Tensor | None) -> Iterator[tuple[Value, Tensor]]:
    """Each node that a gradient reaches, with that gradient, users before their inputs.

    When a node's turn comes all its users have had theirs, so what they sent adds up to its whole gradient; it is
    forgotten as soon as it has been passed on.
    """
    gradients = {id(output): _first_gradient(output, out_grad)}
    for node in reversed(find_topo_sort([output])):
        gradient = gradients.pop(id(node), None)
        if gradient is None:
            continue
        yield node, gradient
        if node.op is None:
            continue
        for value, part in zip(node.inputs, node.op.gradient(gradient, node), strict=True):
            if part is not None and value.requires_grad:
                gradients[id(value)] = _sum(gradients.get(id(value)), part)


def _first_gradient(output: Tensor, out_grad: Tensor | None) -> Tensor:
    if not output.requires_grad:
        raise RuntimeError("this Tensor depends on nothing that requires a gradient, or was computed under no_grad()")
    if out_grad is None:
        if any(size != 1 for size in output.shape):
            raise RuntimeError(f"a gradient needs an output of one number, or an out_grad of the output's shape "
                               f"{output.shape}")
        return output.full_like(1.0)
    if out_grad.shape != output.shape:
        raise ValueError(f"out_grad has shape {out_grad.shape}, the output {output.shape}")
    return out_grad


def _sum(a, b):
    """a + b, where None is zero; the gradient of a tuple node is a tuple of the gradients of its parts."""
    if a is None or b is None:
        return b if a is None else a
    return tuple(map(_sum, a, b)) if isinstance(a, tuple) else a + b
