"""Every operator is PyTorch's: results and gradients in float32 against PyTorch in float64."""

from __future__ import annotations

import mytensor
import numpy as np
import pytest
import torch
from against_torch import TORCH, assert_close, compare, normal, positive
from hypothesis import given
from hypothesis import strategies as st

import mytorch
from mytorch.ops.matmul import MatMul

pytestmark = pytest.mark.usefixtures("each_cpu_variant")

SHAPES = [(), (1,), (3,), (4, 1), (1, 5), (2, 3), (2, 1, 3), (2, 3, 4, 5)]
# Pairs that broadcast: a scalar, new leading axes, inner axes, both ways at once.
BROADCASTS = [((), ()), ((3,), ()), ((), (2, 3)), ((2, 3), (3,)), ((4, 1, 3), (2, 1)), ((2, 1, 3), (1, 4, 1)),
              ((2, 3, 4, 5), (1, 3, 1, 1)), ((1,), (1, 1, 1, 1)), ((5, 1), (1, 5))]

UNARY = {
    "neg": lambda m, x: m.neg(x),
    "exp": lambda m, x: m.exp(x),
    "sigmoid": lambda m, x: m.sigmoid(x),
    "tanh": lambda m, x: m.tanh(x),
    "relu": lambda m, x: m.relu(x),
}
UNARY_OF_POSITIVE = {
    "log": lambda m, x: m.log(x),
    "sqrt": lambda m, x: m.sqrt(x),
    "square": lambda m, x: x**2,
    "cube root": lambda m, x: m.pow(x, 1 / 3),
    "power of two": lambda m, x: 2.0**x,
    "scalars": lambda m, x: (1 - 2 * x / 3 + 1 / x - x) * 0.5,
}
BINARY = {
    "add": lambda m, a, b: m.add(a, b),
    "sub": lambda m, a, b: a - b,
    "mul": lambda m, a, b: a * b,
    "div": lambda m, a, b: m.div(a, b),
    "maximum": lambda m, a, b: m.maximum(a, b),
    "pow": lambda m, a, b: m.pow(a, b),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, shape):
    compare(UNARY[name], normal(*shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", UNARY_OF_POSITIVE)
def test_unary_of_positive_numbers(name, shape):
    compare(UNARY_OF_POSITIVE[name], positive(*shape))


@pytest.mark.parametrize("shapes", BROADCASTS)
@pytest.mark.parametrize("name", BINARY)
def test_binary_with_broadcasting(name, shapes):
    a, b = positive(*shapes[0]), positive(*shapes[1], seed=1)
    compare(BINARY[name], a, b)
    compare(BINARY[name], b, a)


@given(data=st.data())
def test_broadcasting_over_random_axes(data):
    shape = data.draw(st.lists(st.integers(1, 4), max_size=4))
    a_shape, b_shape = ([data.draw(st.sampled_from([1, size])) for size in shape] for _ in range(2))
    a_shape = a_shape[data.draw(st.integers(0, len(a_shape))):]
    compare(BINARY["mul"], normal(*a_shape), normal(*b_shape, seed=1))
    compare(BINARY["div"], normal(*b_shape), positive(*a_shape))


def test_elementwise_at_the_edges():
    for value in (-np.inf, -80, -1, 0, 1, 80, np.inf, np.nan):
        for name in ("relu", "sigmoid", "tanh", "exp"):
            compare(UNARY[name], np.array([value], np.float32), twice=False)
    compare(BINARY["maximum"], np.array([1, 2, 2, -1], np.float32), np.array([2, 2, 1, -1], np.float32))
    compare(BINARY["pow"], np.array([0, 0, 2, 3], np.float32), np.array([0, 2, 0, 3], np.float32), twice=False)
    compare(lambda m, x: x**2, np.array([-2, 0, 3], np.float32))
    compare(lambda m, x: x**0, np.array([-2, 0, 3], np.float32), twice=False)


def test_relu_and_max_pool_keep_nan():
    picture = np.full((1, 17, 4, 4), -1, np.float32)
    picture[:, :, 1, 1] = np.nan  # in each channel: a kernel's leftover channels have code of their own
    for result in (mytorch.relu(mytorch.Tensor(picture)), mytorch.max_pool2d(mytorch.Tensor(picture), 2)):
        assert np.isnan(result.numpy()).sum() == 17


# ---- reductions and shapes ----

AXES = [((2, 3, 4), dim) for dim in (None, 0, 1, 2, -1, (0, 2), (1, -1), (0, 1, 2))] + [
    ((), None), ((1, 1), 1), ((5,), 0), ((2, 3, 2, 3), (1, 3)), ((2, 1, 3), 1)]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("shape, dim", AXES)
@pytest.mark.parametrize("name", ["sum", "mean", "amax"])
def test_reductions(name, shape, dim, keepdim):
    axes = tuple(range(len(shape))) if dim is None else dim
    compare(lambda m, x: getattr(m, name)(x, dim if m is mytorch else axes, keepdim), normal(*shape))


def test_amax_shares_the_gradient_among_equal_values():
    compare(lambda m, x: m.amax(x, 1), np.array([[1, 3, 3], [2, 2, 2], [-1, -5, -9]], np.float32))


@given(data=st.data())
def test_reductions_over_random_axes(data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dim = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    keepdim = data.draw(st.booleans())
    compare(lambda m, x: m.sum(x, dim, keepdim) + m.mean(x, dim, keepdim) * m.amax(x, dim, keepdim), normal(*shape))


SHAPE_OPS = {
    "reshape": (lambda m, x: m.reshape(x, (4, -1)) ** 2, (2, 3, 4)),
    "reshape to a scalar": (lambda m, x: m.reshape(x, ()) ** 2, (1, 1)),
    "permute": (lambda m, x: m.permute(x, (2, 0, 1)) ** 2, (2, 3, 4)),
    "permute from the end": (lambda m, x: m.permute(x, (-1, 0, -2, 1)) ** 2, (2, 3, 4, 5)),
    "transpose": (lambda m, x: m.transpose(x, 0, -1) ** 2, (2, 3, 4)),
    "flatten": (lambda m, x: m.flatten(x) ** 2, (2, 3)),
    "flatten a scalar": (lambda m, x: m.flatten(x) ** 2, ()),
    "flatten pictures": (lambda m, x: m.flatten(x, 1) ** 2, (2, 3, 4, 5)),
    "flatten inner axes": (lambda m, x: m.flatten(x, 1, -2) ** 2, (2, 3, 4, 5)),
    "broadcast_to": (lambda m, x: m.broadcast_to(x, (2, 3, 4)) ** 2, (3, 1)),
    "broadcast a scalar": (lambda m, x: m.broadcast_to(x, (2, 3)) ** 2, ()),
}


@pytest.mark.parametrize("name", SHAPE_OPS)
def test_shapes(name):
    function, shape = SHAPE_OPS[name]
    compare(function, normal(*shape))


# ---- matrix products ----

@pytest.mark.parametrize("a, b", [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((1, 5), (5, 1)), ((2, 3, 4), (2, 4, 5)),
                                  ((3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
                                  ((2, 3, 1, 4), (1, 3, 4, 2))])
def test_matmul(a, b):
    compare(lambda m, x, y: m.matmul(x, y), normal(*a), normal(*b, seed=1))


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_products_of_transposed_matrices(transpose_a, transpose_b):
    def product(m, x, y):
        if m is mytorch:
            return MatMul(transpose_a, transpose_b)(x, y)
        return (x.mT if transpose_a else x) @ (y.mT if transpose_b else y)
    compare(product, normal(*((2, 4, 3) if transpose_a else (2, 3, 4))), normal(*((5, 4) if transpose_b else (4, 5))))


@given(n=st.integers(1, 9), inputs=st.integers(1, 40), outputs=st.integers(1, 20), bias=st.booleans())
def test_linear(n, inputs, outputs, bias):
    arrays = [normal(n, inputs), normal(outputs, inputs, seed=1), normal(outputs, seed=2)]
    compare(lambda m, *args: m.linear(*args), *arrays[:3 if bias else 2])


# ---- convolution and pooling ----

def compare_conv(n, channels, size, kernels, kernel, stride, padding, bias=True):
    arrays = [normal(n, channels, *size), normal(kernels, channels, *kernel, seed=1), normal(kernels, seed=2)]
    compare(lambda m, x, w, b=None: m.conv2d(x, w, b, stride, padding), *arrays[:3 if bias else 2], tolerance=2e-5)


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("kernel", [1, 2, 5, 7])
def test_convolution_with_strides_that_do_not_divide_the_picture(kernel, stride, padding):
    for n in (2, 17):  # vectors along the channels, and across the batch
        for size in ((15, 16), (16, 17), (17, 15)):
            compare_conv(n, 2, size, 3, (kernel, kernel), stride, padding)


@pytest.mark.parametrize("arguments", [
    (1, 1, (1, 1), 1, (1, 1), 1, 0), (2, 3, (8, 8), 4, (3, 3), 1, 1), (2, 3, (5, 9), 2, (2, 3), (2, 1), (1, 0)),
    (1, 2, (5, 5), 2, (2, 2), 3, 0), (3, 1, (4, 4), 1, (4, 4), 1, 0), (1, 2, (3, 3), 2, (5, 4), 2, (1, 2)),
    (2, 17, (6, 6), 19, (3, 3), 1, 1), (1, 3, (16, 16), 2, (7, 7), 3, 2), (2, 3, (12, 12), 6, (5, 5), 1, 0),
    (16, 1, (1, 1), 1, (1, 1), 1, 0), (16, 3, (12, 12), 6, (5, 5), 1, 0), (33, 6, (7, 7), 16, (5, 5), 1, 0),
    (17, 2, (5, 9), 13, (2, 3), (2, 1), (1, 0)), (20, 16, (3, 3), 7, (5, 4), 2, (1, 2)),
    (16, 2, (14, 14), 8, (11, 11), 1, 5), (16, 17, (5, 5), 3, (3, 3), 1, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_convolution_of_awkward_shapes(arguments, bias):
    compare_conv(*arguments, bias=bias)


@given(data=st.data())
def test_convolution_of_random_shapes(data):
    def draw(low, high):
        return data.draw(st.integers(low, high))
    kernel, stride, padding = (draw(1, 5), draw(1, 5)), (draw(1, 4), draw(1, 4)), (draw(0, 3), draw(0, 3))
    size = tuple(draw(max(1, k - 2 * p), 12) for k, p in zip(kernel, padding, strict=True))
    n = data.draw(st.sampled_from([1, 2, 3, 16, 21]))
    compare_conv(n, draw(1, 5), size, draw(1, 8), kernel, stride, padding, data.draw(st.booleans()))


# What may come after a convolution, y (n, 3, 4, 4): in whatever order of memory it lies, it is the same tensor.
AFTER_CONVOLUTION = {
    "max-pooling": lambda m, y: m.max_pool2d(y, 3, 2, 1),
    "average pooling": lambda m, y: m.avg_pool2d(y, (2, 3), 1),
    "relu": lambda m, y: m.relu(y),
    "batch-norm": lambda m, y: m.batch_norm(y, *(like(m, [0.5, 1.0, 2.0]) for _ in range(4))),
    "flatten": lambda m, y: m.flatten(y, 1) * like(m, np.arange(48.0)),
    "transpose": lambda m, y: m.transpose(y, 1, 3) * like(m, np.arange(3.0)),
    "sum of channels": lambda m, y: m.sum(y, 1) * like(m, np.arange(4.0)),
    "sum of pictures": lambda m, y: m.sum(y, 0) * like(m, np.arange(4.0)),
    "bias": lambda m, y: y + like(m, np.arange(3.0).reshape(1, 3, 1, 1)),
    "weights that lie otherwise": lambda m, y: y * like(m, np.arange(48.0).reshape(1, 3, 4, 4)),
    "product with what lies otherwise": lambda m, y: y * m.broadcast_to(like(m, np.arange(4.0)), y.shape),
    "softmax": lambda m, y: m.softmax(y, 1),
    "matmul": lambda m, y: m.matmul(y, y),
    "wide convolution": lambda m, y: m.conv2d(y, like(m, normal(20, 3, 3, 3)), None, 1, 1),
}


def like(m, values):
    """A constant in mytorch or, in float64, in PyTorch."""
    values = np.asarray(values, np.float32)
    return mytorch.Tensor(values, requires_grad=False) if m is mytorch else torch.from_numpy(values).double()


@pytest.mark.parametrize("n", [2, 19])
@pytest.mark.parametrize("after", AFTER_CONVOLUTION)
def test_what_follows_a_convolution_does_not_see_how_it_lies(after, n):
    compare(lambda m, x, w: AFTER_CONVOLUTION[after](m, m.conv2d(x, w, None, 1, 0)),
            normal(n, 2, 6, 6), normal(3, 2, 3, 3, seed=1), tolerance=5e-5, twice=False)


POOLS = [(2, None, 0), (3, 1, 1), (3, 2, 1), (2, 3, 0), ((2, 3), (1, 2), (1, 0)), (4, None, 0), (1, 1, 0), (5, 2, 2)]


@pytest.mark.parametrize("window", POOLS)
@pytest.mark.parametrize("size", [(4, 5), (7, 6), (8, 8)])
def test_pooling(size, window):
    compare(lambda m, x: m.max_pool2d(x, *window), normal(2, 3, *size), twice=False)
    compare(lambda m, x: m.avg_pool2d(x, *window), normal(2, 3, *size))


@given(data=st.data())
def test_pooling_of_random_windows(data):
    kernel = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    padding = tuple(data.draw(st.integers(0, size // 2)) for size in kernel)
    size = tuple(data.draw(st.integers(k, 9)) for k in kernel)
    compare(lambda m, x: m.max_pool2d(x, kernel, stride, padding), normal(2, 2, *size), twice=False)
    compare(lambda m, x: m.avg_pool2d(x, kernel, stride, padding), normal(2, 2, *size))


def test_overlapping_windows_with_ties_give_the_gradient_to_the_first_maximum():
    steps = np.random.default_rng(0).integers(-1, 2, (2, 3, 9, 9)).astype(np.float32)
    compare(lambda m, x: m.max_pool2d(x, 3, 1, 1), steps, twice=False)
    compare(lambda m, x: m.max_pool2d(x, 3, 2), np.zeros((1, 1, 7, 7), np.float32), twice=False)


def test_adaptive_average_pooling_is_the_mean_of_a_channel():
    compare(lambda m, x: m.adaptive_avg_pool2d(x, 1), normal(2, 3, 4, 5))
    with pytest.raises(ValueError, match="output_size is 1, got 2"):
        mytorch.adaptive_avg_pool2d(mytorch.Tensor(normal(1, 1, 4, 4)), 2)


# ---- normalisation, dropout, loss ----

def compare_batch_norm(x, training, tolerance=2e-5):
    channels = x.shape[1]
    mean, var = normal(channels, seed=3), positive(channels, seed=4)
    ours = [mytorch.Tensor(array, requires_grad=False) for array in (mean, var)]
    theirs = [torch.tensor(array, dtype=torch.float64) for array in (mean, var)]
    compare(lambda m, x, w, b: m.batch_norm(x, *(ours if m is mytorch else theirs), w, b, training, 0.1, 1e-5),
            x, positive(channels, seed=5), normal(channels, seed=6), twice=False, tolerance=tolerance)
    for our, their in zip(ours, theirs, strict=True):
        assert_close(our.numpy(), their.numpy(), "running statistics", tolerance)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 1, 1), (1, 4, 1, 2), (5, 17, 3, 3), (3, 2, 8, 8)])
def test_batch_norm(shape, training):
    compare_batch_norm(normal(*shape), training)


def test_batch_norm_of_values_far_from_zero_keeps_its_variance():
    compare_batch_norm(normal(4, 3, 5, 5) + np.float32(300), training=True, tolerance=1e-3)


def test_batch_norm_of_one_value_a_channel_is_refused_in_training_alone():
    x, ones = mytorch.Tensor(normal(1, 3, 1, 1)), [mytorch.Tensor(np.ones(3)) for _ in range(4)]
    with pytest.raises(ValueError, match=r"more than one value a channel.*\(1, 3, 1, 1\)"):
        mytorch.batch_norm(x, *ones, training=True)
    assert mytorch.batch_norm(x, *ones).shape == x.shape


@pytest.mark.parametrize("shape, dim", [((2, 3), 1), ((2, 3), 0), ((4,), -1), ((2, 3, 4), 1), ((2, 1), 1)])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name, shape, dim):
    compare(lambda m, x: getattr(m, name)(x, dim), 3 * normal(*shape))


def compare_loss(logits, labels, smoothing=0.0):
    def loss(m, x):
        return m.cross_entropy(x, labels if m is mytorch else torch.tensor(labels), label_smoothing=smoothing)
    compare(loss, np.asarray(logits, np.float32), twice=False)


@given(n=st.integers(1, 9), classes=st.integers(1, 12), smoothing=st.sampled_from([0.0, 0.1, 1.0]), data=st.data())
def test_cross_entropy(n, classes, smoothing, data):
    labels = data.draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n))
    compare_loss(5 * normal(n, classes), np.array(labels), smoothing)
    probabilities = TORCH.softmax(torch.tensor(normal(n, classes, seed=1)), 1).double().numpy()
    compare_loss(5 * normal(n, classes), probabilities, smoothing)


@pytest.mark.parametrize("logits, label, loss", [
    ([-431, 279, 427], 0, 858), ([1e8, 1e8], 1, np.log(2)), ([-300] * 5, 4, np.log(5)), ([1e30, -1e30], 0, 0)])
def test_cross_entropy_of_extreme_logits(logits, label, loss):
    ours = mytorch.cross_entropy(mytorch.Tensor([logits]), np.array([label]))
    assert ours.item() == pytest.approx(loss, rel=1e-6)
    compare_loss([logits, [0] * len(logits)], np.array([label, 0]))


def test_cross_entropy_takes_indices_in_any_form():
    logits, labels = mytorch.Tensor(normal(3, 4)), [3, 0, 2]
    forms = (labels, np.array(labels, np.int32), np.array(labels, np.uint8), np.array(labels, np.float32),
             mytorch.Tensor(labels), mytensor.Tensor.from_numpy(np.array(labels, np.float32)), np.eye(4)[labels])
    assert len({mytorch.cross_entropy(logits, form).item() for form in forms}) == 1


@pytest.mark.parametrize("label", [-1, 4, 2**31, -2**31, 2**32])
def test_a_label_outside_the_classes_is_named(label):
    with pytest.raises(ValueError, match=f"{label}.*1"):
        mytorch.cross_entropy(mytorch.Tensor(normal(3, 4)), np.array([0, label, 2]))


def test_cross_entropy_does_not_broadcast_its_labels():
    for labels in (np.zeros((3, 1), np.int64), np.zeros(4, np.int64), np.zeros((1, 4))):
        with pytest.raises(ValueError, match=r"\(3, 4\)"):
            mytorch.cross_entropy(mytorch.Tensor(normal(3, 4)), labels)


def test_dropout_scales_what_it_keeps_and_passes_the_gradient_through_the_same_mask():
    mytorch.manual_seed(3)
    x = mytorch.Tensor(positive(40, 50))
    y = mytorch.dropout(x, 0.25)
    y.sum().backward()
    kept = y.numpy() != 0
    assert abs(kept.mean() - 0.75) < 0.03
    assert_close(y.numpy(), np.where(kept, x.numpy() / 0.75, 0), "kept values")
    assert_close(x.grad.numpy(), np.where(kept, 1 / 0.75, 0), "gradient")


def test_dropout_draws_another_mask_each_time_and_the_same_ones_from_the_same_seed_or_state():
    x = mytorch.Tensor(positive(10, 10))

    def masks(count):
        return [mytorch.dropout(x, 0.5).numpy() != 0 for _ in range(count)]
    mytorch.manual_seed(3)
    first, second = masks(2)
    state = mytorch.get_rng_state()
    third = masks(1)[0]
    assert (first != second).any() and (second != third).any()
    mytorch.set_rng_state(state)
    assert (masks(1)[0] == third).all()
    mytorch.manual_seed(3)
    assert (np.array(masks(3)) == [first, second, third]).all()
    mytorch.manual_seed(4)
    assert (masks(1)[0] != first).any()


def test_dropout_of_all_of_none_and_in_evaluation():
    x = mytorch.Tensor(positive(4, 4))
    assert mytorch.dropout(x, 0.0) is x and mytorch.dropout(x, 0.5, training=False) is x
    assert not mytorch.dropout(x, 1.0).numpy().any()
    with pytest.raises(ValueError, match="probability, got 1.5"):
        mytorch.dropout(x, 1.5)


# ---- how arguments are wrong ----

@pytest.mark.parametrize("call, shape", [
    (lambda x: mytorch.reshape(x, (5,)), r"\(2, 3\)"),
    (lambda x: x + np.ones(4), r"\(2, 3\)"),
    (lambda x: x @ x, r"\(2, 3\)"),
    (lambda x: mytorch.sum(x, 2), r"\(2, 3\)"),
    (lambda x: mytorch.transpose(x, 0, 2), r"\(2, 3\)"),
    (lambda x: mytorch.flatten(x, 1, 0), r"\(2, 3\)"),
    (lambda x: mytorch.broadcast_to(x, (2, 4)), r"\(2, 3\)"),
    (lambda x: mytorch.linear(x, mytorch.Tensor(normal(4, 5))), r"\(2, 3\)"),
    (lambda x: mytorch.conv2d(x, mytorch.Tensor(normal(1, 1, 1, 1))), r"\(2, 3\)"),
    (lambda x: mytorch.max_pool2d(x, 2), r"\(2, 3\)"),
    (lambda x: mytorch.adaptive_avg_pool2d(x, 1), r"\(2, 3\)"),
])
def test_shapes_that_do_not_fit_are_named(call, shape):
    with pytest.raises(ValueError, match=shape):
        call(mytorch.Tensor(normal(2, 3)))


@pytest.mark.parametrize("stride", [2.5, "2", (1, 2, 3), None, True])
def test_a_stride_that_is_no_whole_number_or_pair_is_refused(stride):
    with pytest.raises(TypeError, match="stride is a whole number or a pair"):
        mytorch.conv2d(mytorch.Tensor(normal(1, 1, 4, 4)), mytorch.Tensor(normal(1, 1, 2, 2)), stride=stride)
