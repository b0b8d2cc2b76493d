"""Calls of everything in mytensor as text: right ones for each function, and what may be wrong with an argument.

`t(2, 3)` in them is a Tensor of that shape, `last(1, 2, 3, 4)` one that lies channels-last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mytensor
import numpy as np
from hypothesis import find, settings
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy], object]


# ---- right arguments -------------------------------------------------------------------------------------------------

BOOLS = st.sampled_from(["True", "False"])


def number(draw: Draw, low: int, high: int) -> int:
    return draw(st.integers(low, high))


def shape(draw: Draw, ranks: tuple[int, int] = (0, 4)) -> tuple[int, ...]:
    return tuple(number(draw, 1, 4) for _ in range(number(draw, *ranks)))


def tensor(sizes: tuple[int, ...]) -> str:
    return f"t({', '.join(map(str, sizes))})"


def pictures(draw: Draw, sizes: tuple[int, ...]) -> str:
    return draw(st.sampled_from(["t", "last"])) + str(sizes)


def one_tensor(draw: Draw) -> list[str]:
    return [tensor(shape(draw))]


def two_alike(draw: Draw) -> list[str]:
    return one_tensor(draw) * 2


def binary(draw: Draw) -> list[str]:
    sizes = shape(draw)
    other = tuple(draw(st.sampled_from([1, size])) for size in sizes)[number(draw, 0, len(sizes)):]
    pair = [tensor(sizes), draw(st.sampled_from([tensor(other), "2", "0.5"]))]
    return draw(st.permutations(pair))


def reduction(draw: Draw) -> list[str]:
    sizes = shape(draw)
    axes = draw(st.lists(st.integers(0, len(sizes) - 1), unique=True)) if sizes else []
    return [tensor(sizes), draw(st.sampled_from([str(axes), "None", *map(str, axes)])), draw(BOOLS)]


def reshape(draw: Draw) -> list[str]:
    sizes = shape(draw)
    return [tensor(sizes), draw(st.sampled_from([str(sizes[::-1]), "[-1]", "[1, -1, 1]"]))]


def transpose(draw: Draw) -> list[str]:
    sizes = shape(draw)
    return [tensor(sizes), str(draw(st.permutations(range(len(sizes)))))]


def broadcast_to(draw: Draw) -> list[str]:
    sizes = shape(draw)
    return [tensor(tuple(draw(st.sampled_from([1, size])) for size in sizes)), str(sizes)]


def matmul(draw: Draw) -> list[str]:
    n, k, m = number(draw, 1, 4), number(draw, 1, 20), number(draw, 1, 20)
    batch, (turn_a, turn_b) = shape(draw, (0, 2)), draw(st.tuples(st.booleans(), st.booleans()))
    a, b = (k, n) if turn_a else (n, k), (m, k) if turn_b else (k, m)
    return [tensor((*batch, *a)), tensor((*batch[:number(draw, 0, 1) * 2], *b)), str(turn_a), str(turn_b)]


def linear(draw: Draw, backward: bool = False) -> list[str]:
    n, inputs, outputs = number(draw, 1, 4), number(draw, 1, 20), number(draw, 1, 20)
    bias = draw(st.sampled_from(["None", tensor((outputs,))]))
    end = [tensor((n, outputs)), draw(BOOLS)] if backward else []
    return [tensor((n, inputs)), tensor((outputs, inputs)), bias, *end]


def window(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...], list[int], list[str]]:
    """(height, width) of pictures, of what comes out and of the kernel; and strides and padding as arguments."""
    kernel = [number(draw, 1, 3) for _ in range(2)]
    stride = [number(draw, 1, 3) for _ in range(2)]
    padding = [number(draw, 0, size // 2) for size in kernel]
    size = tuple(max(1, k - 2 * p) + number(draw, 0, 4) for k, p in zip(kernel, padding, strict=True))
    out = tuple((i + 2 * p - k) // s + 1 for i, k, s, p in zip(size, kernel, stride, padding, strict=True))
    return size, out, kernel, list(map(str, [*stride, *padding]))


def convolution(draw: Draw, backward: bool = False) -> list[str]:
    size, out, kernel, rest = window(draw)
    n, channels, kernels = number(draw, 1, 2), draw(st.sampled_from([1, 3, 17])), draw(st.sampled_from([1, 5, 20]))
    bias = draw(st.sampled_from(["None", tensor((kernels,))]))
    arguments = [pictures(draw, (n, channels, *size)), pictures(draw, (kernels, channels, *kernel)), bias]
    if backward:
        return [*arguments, pictures(draw, (n, kernels, *out)), *rest, draw(BOOLS)]
    return arguments + rest


def pooling(draw: Draw, backward: bool = False) -> list[str]:
    size, out, kernel, rest = window(draw)
    planes = (number(draw, 1, 2), draw(st.sampled_from([1, 3, 17])))
    out_grad = [pictures(draw, (*planes, *out))] if backward else []
    return [pictures(draw, (*planes, *size)), *out_grad, *map(str, kernel), *rest]


def batch_norm(draw: Draw, backward: bool = False) -> list[str]:
    sizes = (2, draw(st.sampled_from([1, 3, 17])), number(draw, 1, 3), number(draw, 1, 3))
    x, vector, training = pictures(draw, sizes), tensor(sizes[1:2]), draw(BOOLS)
    if backward:
        return [x, vector, vector, vector, pictures(draw, sizes), training]
    return [x, *[vector] * 4, training, "0.1", "1e-5"]


def softmax(draw: Draw, backward: bool = False) -> list[str]:
    sizes = shape(draw, (1, 4))
    return [*[tensor(sizes)] * (1 + backward), str(number(draw, -len(sizes), len(sizes) - 1))]


def cross_entropy(draw: Draw, backward: bool = False) -> list[str]:
    n, classes = number(draw, 1, 4), number(draw, 1, 5)
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n))
    given = draw(st.sampled_from([str(labels), f"np.array({labels}, np.uint8)", tensor((n, classes))]))
    return [tensor((n, classes)), given, *(["t()"] if backward else []), "0.1"]


def dropout(draw: Draw) -> list[str]:
    return [*one_tensor(draw), "0.5", str(number(draw, 0, 9)), str(number(draw, 0, 9))]


def lists_of(count: int, *rest: str) -> Callable[[Draw], list[str]]:
    def arguments(draw: Draw) -> list[str]:
        return [f"[{', '.join(tensor(sizes) for sizes in draw(SHAPES))}]"] * count + list(rest)
    SHAPES = st.lists(st.lists(st.integers(1, 4), max_size=4).map(tuple), max_size=3)
    return arguments


def fixed(*choices: list[str]) -> Callable[[Draw], list[str]]:
    return lambda draw: draw(st.sampled_from(choices))


def backward(forward: Callable[[Draw, bool], list[str]]) -> Callable[[Draw], list[str]]:
    return lambda draw: forward(draw, True)


RIGHT: dict[str, Callable[[Draw], list[str]]] = {
    "TensorDevice": fixed(["0"], ["1"]),
    "Tensor": lambda draw: [str(shape(draw))],
    "Tensor.from_numpy": fixed(["np.ones((2, 3))"], ["np.ones((4, 4))[::2, ::-1]"], ["2.5"], ["[[1], [2]]"], ["t(2)"]),
    "Tensor.copy_": two_alike,
    "Tensor.fill_": lambda draw: [*one_tensor(draw), "0.5"],
    "Tensor.__array__": lambda draw: [*one_tensor(draw), draw(st.sampled_from(["None", "np.float64"])), "None"],
    **{f"Tensor.{name}": one_tensor for name in ("numpy", "shape", "device", "cpu", "__repr__")},
    "full": lambda draw: [str(shape(draw)), "0.5", "mytensor.TensorDevice.CPU"],
    **{name: binary for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "equal", "greater",
                                 "greater_equal")},
    **{name: one_tensor for name in ("neg", "exp", "log", "sqrt", "abs", "relu", "sigmoid", "tanh", "nn.relu_forward",
                                     "nn.sigmoid_forward", "nn.tanh_forward")},
    **{name: two_alike for name in ("nn.relu_backward", "nn.sigmoid_backward", "nn.tanh_backward")},
    "sum": reduction, "mean": reduction, "max": reduction,
    "reshape": reshape, "transpose": transpose, "broadcast_to": broadcast_to, "matmul": matmul,
    "nn.linear_forward": linear, "nn.linear_backward": backward(linear),
    "nn.conv_forward": convolution, "nn.conv_backward": backward(convolution),
    "nn.maxpool_forward": pooling, "nn.maxpool_backward": backward(pooling),
    "nn.avgpool_forward": pooling, "nn.avgpool_backward": backward(pooling),
    "nn.batchnorm_forward": batch_norm, "nn.batchnorm_backward": backward(batch_norm),
    "nn.softmax_forward": softmax, "nn.softmax_backward": backward(softmax),
    "nn.log_softmax_forward": softmax, "nn.log_softmax_backward": backward(softmax),
    "nn.cross_entropy_forward": cross_entropy, "nn.cross_entropy_backward": backward(cross_entropy),
    "nn.dropout_forward": dropout, "nn.dropout_backward": dropout,
    "nn.sgd_step": lists_of(3, "0.1", "0.9", "0.01", "True"),
    "nn.adam_step": lists_of(4, "0.1", "0.9", "0.99", "1e-8", "0.01", "True", "3"),
    **{name: fixed([]) for name in ("live_tensors", "memory_allocated", "memory_reserved", "empty_cache",
                                    "cuda_available", "cpu_variants", "cpu_variant", "get_num_threads",
                                    "winograd_enabled")},
    "set_cpu_variant": fixed(["'reference'"], ["'baseline'"]),
    "enable_winograd": fixed(["False"], ["True"]),
    "set_num_threads": fixed(["1"], ["2"]),
}
REFUSED_HERE = {"Tensor.gpu": one_tensor}  # right, but for what this machine or build lacks


# ---- wrong ones ------------------------------------------------------------------------------------------------------

NONSENSE = [
    # numbers; none is large enough, and below 2^31, to be the size of a tensor that fills the memory
    "None", "True", "False", "-1", "0", "1", "2", "5", "2**31", "2**32 + 1", "2**62", "2**63 - 1", "2**63", "2**64",
    "-2**31", "-2**63", "-2**63 - 1", "10**400", "0.5", "-0.5", "nan", "inf", "-inf", "1e300", "1j",
    "np.float32(2.5)", "np.float64(0.5)", "np.int8(3)", "np.uint64(2**63)", "np.bool_(True)", "np.complex64(1j)",
    "np.str_('3')", "np.array(2.5)", "np.array(2)", "np.datetime64('2020')", "Decimal(2)", "Fraction(5, 2)",
    # text, lists and what is neither
    "'text'", "''", r"'\udc80'", r"b'\xff'", "[]", "()", "[[]]", "[1] * 5", "[1] * 1000", "[1, 1]", "[-1, -1]",
    "[0, -1]", "[True]", "[2] * 70000", "[1, None]", "['1']", "[1.0]", "[nan, 0]", "[np.float32(2.5)]",
    "[2**16, 2**16]", "[2**62, 2**62]",
    "[[1, 2], [3]]", "[[1, 2], [3, 4]]", "[[0.5, 0.5]]", "{}", "{1, 2}", "range(3)", "(i for i in (1, 2))", "object()",
    "print", "int", "mytensor", "...", "endless", "hostile",
    # arrays
    "np.zeros(0)", "np.zeros((2, 0, 3))", "np.zeros((0, 2))", "np.zeros((1,) * 5)", "np.zeros((1,) * 40)", "np.ones(4)",
    "np.ones((2, 3))", "np.ones((2, 3), bool)", "np.arange(3)", "np.array([0, nan])", "np.array([-1, 0])",
    "np.array(['a', 'b'])", "np.array([object()])", "np.zeros(2, 'i4,f4')", "np.array([1j])",
    "np.array(['2020'], 'M8[D]')", "np.broadcast_to(np.float32(0), (2**20, 2**20))", "np.broadcast_to(0, 2**40)",
    "np.ones((2, 2), '>f2').T",
    # what is ours
    "mytensor.TensorDevice.GPU", "mytensor.TensorDevice(7)", "mytensor.Tensor", "mytensor.TensorDevice",
    "mytensor.Tensor.__new__(mytensor.Tensor)",
    "t()", "t(1)", "t(3)", "t(2, 3)", "last(1, 3, 2, 2)", "t(1, 17, 3, 3)", "[t(2)]", "[t(2), None]", "(t(2), t(3))",
    "[mytensor.Tensor.__new__(mytensor.Tensor)]", "Derived([2, 3])",
]


class Endless(list):
    """A list that holds itself."""

    def __init__(self) -> None:
        super().__init__([self])


class Hostile:
    """What looks like a number, an index, a list and an array, and refuses to be any."""

    def __index__(self) -> int:
        raise ValueError("no index")

    __float__ = __int__ = __bool__ = __len__ = __index__

    def __getitem__(self, key: object) -> object:
        raise ValueError("no item")

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise ValueError("no array")


class Derived(mytensor.Tensor):
    """A Tensor of a class of Python's."""


@st.composite
def right_arguments(draw: Draw, name: str) -> list[str]:
    return list({**RIGHT, **REFUSED_HERE}[name](draw))


def calls_with_one_fault(name: str) -> Iterator[str]:
    """The simplest right call of `name`, with each argument in turn replaced by each of the wrong ones."""
    arguments = find(right_arguments(name), lambda _: True, settings=settings(database=None, derandomize=True))
    for place in range(len(arguments)):
        for wrong in NONSENSE:
            yield f"mytensor.{name}({', '.join([*arguments[:place], wrong, *arguments[place + 1:]])})"


@st.composite
def calls(draw: Draw, name: str) -> tuple[str, bool]:
    """A call of `name`, and whether it is right: in most one or two arguments are wrong, or their number is."""
    arguments = draw(right_arguments(name))
    faults = draw(st.sampled_from([0, 1, 1, 2]))
    for _ in range(faults):
        place = number(draw, 0, len(arguments))
        if place < len(arguments):
            arguments[place] = draw(st.sampled_from(NONSENSE) | st.builds(tensor, st.builds(tuple, st.lists(
                st.integers(1, 4), max_size=4))))
        elif arguments and draw(st.booleans()):
            arguments.pop()
        else:
            arguments.append(draw(st.sampled_from(NONSENSE)))
    return f"mytensor.{name}({', '.join(arguments)})", not faults and name in RIGHT
