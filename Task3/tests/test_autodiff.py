"""The graph: its order, the gradients that flow along it, how long it lives, and when none is made."""

from __future__ import annotations

import gc
import threading
import weakref

import mytensor
import numpy as np
import pytest
from against_torch import normal

import mytorch
from mytorch import Op, Tensor, TensorTuple, Value, find_topo_sort, no_grad

LONG = 200_000


@pytest.fixture
def no_garbage():
    """The test must leave nothing that only the cycle collector would find."""
    gc.collect()
    gc.disable()
    before = mytensor.live_tensors(), mytensor.memory_allocated()
    yield
    after = mytensor.live_tensors(), mytensor.memory_allocated()
    gc.enable()
    assert after == before


def gradients(output: Tensor, *leaves: Tensor) -> list[float]:
    output.backward()
    return [leaf.grad.item() for leaf in leaves]


# ---- order and accumulation ----

def test_the_order_has_each_node_once_and_after_its_inputs():
    a, b = Tensor(1.0), Tensor(2.0)
    c = a * b
    d = c + a
    order = find_topo_sort([d, c])
    assert len(order) == 4 and set(order) == {a, b, c, d}
    assert all(order.index(value) < order.index(node) for node in order for value in node.inputs)
    assert find_topo_sort([]) == [] and find_topo_sort([a, a]) == [a]


def test_a_sum_of_sums():
    a = Tensor(1.0)
    b = a + a
    c = b + b
    assert c.item() == 4 and gradients(c, a) == [4]


def test_a_node_that_is_used_at_two_depths_passes_its_gradient_on_once():
    a = Tensor(3.0)
    b = 2 * a
    assert gradients(b * b + b, a) == [26]


def test_an_input_used_ten_times():
    a = Tensor(2.0)
    product = a
    for _ in range(9):
        product = product * a
    assert gradients(product, a) == [10 * 2**9]


def test_a_diamond_of_depth_60():
    a = Tensor(1.0)
    node = a
    for _ in range(60):
        node = node + node  # 2**60 paths
    assert gradients(node, a) == [2.0**60]


def test_two_outputs_add_up_in_the_leaf_until_it_is_cleared():
    a = Tensor(3.0)
    square = a * a
    assert gradients(square * 2, a) == [12]
    assert gradients(square + a, a) == [12 + 7]
    a.grad = None
    assert gradients(square, a) == [6]


def test_equal_values_are_different_nodes():
    a, b = Tensor(1.0), Tensor(1.0)
    assert gradients(2 * a + 3 * b, a, b) == [2, 3]


def test_gradients_have_the_shapes_of_the_leaves():
    weight, bias = Tensor(normal(3, 4)), Tensor(normal(1, 4))
    (weight + bias).sum().backward()
    assert weight.grad.shape == (3, 4) and bias.grad.shape == (1, 4)
    assert not weight.grad.requires_grad and (bias.grad.numpy() == 3).all()


def test_the_gradient_of_an_output_weighs_it():
    a = Tensor(normal(2, 3))
    (a * a).backward(Tensor(np.broadcast_to(np.float32(1), (2, 3))))
    np.testing.assert_allclose(a.grad.numpy(), 2 * a.numpy())
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 3\)"):
        (a * a).backward(Tensor(normal(3, 2)))
    with pytest.raises(RuntimeError, match=r"one number.*\(2, 3\)"):
        (a * a).backward()


def test_intermediate_nodes_keep_no_gradient():
    a = Tensor(2.0)
    b = a * a
    b.backward()
    assert b.grad is None and a.grad.item() == 4


# ---- only what is needed ----

class Recorder(Op):
    """y = a + b + c, and a note of the inputs that its gradient was asked for."""

    def compute(self, a, b, c):
        return mytensor.add(mytensor.add(a, b), c)

    def gradient(self, out_grad, node):
        self.asked = [value.requires_grad for value in node.inputs]
        return out_grad, out_grad, None


def test_constants_get_no_gradient():
    a, pictures = Tensor(2.0), Tensor(3.0, requires_grad=False)
    op = Recorder()
    gradients(op(a, pictures, a) * pictures, a)
    assert op.asked == [True, False, True] and pictures.grad is None


def test_no_gradient_of_pictures_is_computed(monkeypatch):
    asked = []
    conv_backward = mytensor.nn.conv_backward

    def spy(*arguments):
        asked.append(arguments[-1])
        return conv_backward(*arguments)
    monkeypatch.setattr(mytensor.nn, "conv_backward", spy)
    first, second = Tensor(normal(3, 2, 3, 3)), Tensor(normal(3, 3, 3, 3))
    pictures = Tensor(normal(2, 2, 8, 8), requires_grad=False)
    mytorch.conv2d(mytorch.conv2d(pictures, first), second).sum().backward()
    assert asked == [True, False]  # the second convolution's input needs one; one call gives dX, dW and db at once
    assert pictures.grad is None and first.grad.shape == (3, 2, 3, 3)


def test_what_needs_no_gradient_records_no_graph():
    constant = Tensor(2.0, requires_grad=False)
    result = constant * constant + 1
    assert result.op is None and result.inputs == () and not result.requires_grad
    with pytest.raises(RuntimeError, match="depends on nothing that requires a gradient"):
        result.backward()


def test_detach_shares_the_values_and_stops_gradients():
    a = Tensor(3.0)
    b = (a * a).detach()
    assert b.op is None and not b.requires_grad
    assert gradients(a * b, a) == [9]


def test_an_op_with_the_wrong_number_of_gradients_is_an_error():
    class Wrong(Op):
        def compute(self, a, b):
            return mytensor.add(a, b)

        def gradient(self, out_grad, node):
            return (out_grad,)
    with pytest.raises(ValueError, match="shorter"):
        Wrong()(Tensor(1.0), Tensor(2.0)).backward()


# ---- tuples ----

class MinMax(Op):
    """(a + b, a * b), computed at once."""

    def compute(self, a, b):
        return mytensor.add(a, b), mytensor.mul(a, b)

    def gradient(self, out_grad, node):
        a, b = node.inputs
        of_sum, of_product = out_grad
        if of_product is None:
            return of_sum, of_sum
        if of_sum is None:
            return of_product * b, of_product * a
        return of_sum + of_product * b, of_sum + of_product * a


def test_parts_of_a_tuple_send_their_gradients_together():
    a, b = Tensor(2.0), Tensor(5.0)
    both = MinMax()(a, b)
    assert isinstance(both, TensorTuple) and len(both) == 2
    total, product = both
    assert gradients(3 * total + product * total, a, b) == [3 + 7 * 5 + 10, 3 + 7 * 2 + 10]
    a.grad = None
    assert gradients(both[1], a) == [5]


# ---- gradients of gradients ----

def test_higher_derivatives_of_a_power():
    x = derivative = Tensor(2.0)
    derivative = x**4
    for expected in (32, 48, 48, 24):
        derivative, = mytorch.grad(derivative, [x], create_graph=True)
        assert derivative.item() == pytest.approx(expected, rel=1e-5)
    assert x.grad is None


def test_gradients_of_inner_nodes_and_of_unrelated_ones():
    a, unrelated = Tensor(3.0), Tensor(normal(2))
    b = a * a
    of_b, of_a, of_unrelated = mytorch.grad(b * b, [b, a, unrelated])
    assert (of_b.item(), of_a.item()) == (18, 108) and of_unrelated.numpy().tolist() == [0, 0]


def test_without_create_graph_a_gradient_is_a_constant():
    x = Tensor(2.0)
    assert not mytorch.grad(x * x, [x])[0].requires_grad


@pytest.mark.parametrize("function, name", [
    (lambda x: mytorch.max_pool2d(x, 2), "MaxPool2dBackprop"),
    (lambda x: mytorch.batch_norm(x, *[Tensor(np.ones(1)) for _ in range(4)], training=True), "BatchNorm2dBackprop"),
    (lambda x: mytorch.cross_entropy(x.reshape((2, 8)), [0, 1]), "CrossEntropyBackprop"),
])
def test_what_cannot_be_differentiated_twice_says_so(function, name):
    x = Tensor(normal(1, 1, 4, 4))
    gradient, = mytorch.grad((function(x)**2).sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match=f"{name} has no gradient"):
        (gradient * gradient).sum().backward()


# ---- long graphs ----

def long_chain(start: Tensor, length: int = LONG) -> Tensor:
    y = start
    for _ in range(length // 2):
        y = y + y * 1e-6  # two nodes
    return y


def test_a_long_chain_is_differentiated_and_freed_without_recursion(no_garbage):
    start = Tensor(1.0)
    y = long_chain(start)
    y.backward()
    assert start.grad.item() == pytest.approx(y.item(), rel=1e-5)
    assert y.item() == pytest.approx(np.exp(LONG / 2 * 1e-6), rel=1e-3)
    del start, y


def test_a_long_chain_is_freed_without_a_backward_pass_and_after_an_exception(no_garbage):
    chain = long_chain(Tensor(1.0))
    del chain

    def broken():
        half = long_chain(Tensor(1.0))
        return half + np.ones((2, 3)) @ half
    with pytest.raises(ValueError):
        broken()


# ---- memory ----

def training_step(weights: list[Tensor], images: np.ndarray) -> float:
    x = Tensor(images, requires_grad=False)
    x = mytorch.max_pool2d(mytorch.relu(mytorch.conv2d(x, weights[0], weights[1], padding=1)), 2)
    mean, var = (Tensor(np.ones(4), requires_grad=False) for _ in range(2))
    x = mytorch.batch_norm(x, mean, var, weights[1], weights[1], training=True)
    loss = mytorch.cross_entropy(mytorch.linear(mytorch.dropout(x.flatten(1)), weights[2]), [1, 0, 2])
    loss.backward()
    for weight in weights:
        weight.grad = None
    return loss.item()


def test_a_training_step_leaves_nothing_once_its_loss_is_gone(no_garbage):
    weights = [Tensor(normal(4, 2, 3, 3)), Tensor(normal(4)), Tensor(normal(3, 36))]
    images = normal(3, 2, 6, 6)
    alive = mytensor.live_tensors()
    for _ in range(3):
        training_step(weights, images)
        assert mytensor.live_tensors() == alive


def test_steps_that_raise_midway_leave_nothing(no_garbage):
    weights = [Tensor(normal(4, 2, 3, 3)), Tensor(normal(4)), Tensor(normal(3, 35))]  # the last does not fit
    alive = mytensor.live_tensors()
    for _ in range(3):
        with pytest.raises(ValueError):
            training_step(weights, normal(3, 2, 6, 6))
        assert mytensor.live_tensors() == alive


def test_gradients_of_gradients_make_no_cycle(no_garbage):
    x = Tensor(normal(3))
    gradient, = mytorch.grad((x**3).sum(), [x], create_graph=True)
    gradient.sum().backward()
    assert not x.grad.requires_grad


def test_the_graph_goes_with_its_output():
    a = Tensor(2.0)
    inner = a * a
    gone = weakref.ref(inner)
    output = inner + 1
    del inner
    assert gone() is not None
    del output
    assert gone() is None


def test_backward_forgets_a_gradient_as_soon_as_it_is_passed_on():
    alive = []

    class Watch(Op):
        def compute(self, x):
            return mytensor.neg(x)

        def gradient(self, out_grad, node):
            alive.append(mytensor.live_tensors())
            return (-out_grad,)
    x = Tensor(1.0)
    for _ in range(10):
        x = Watch()(x)
    x.backward()
    assert len(set(alive[2:])) == 1


# ---- no_grad ----

def test_no_grad_records_no_graph():
    a = Tensor(2.0)
    with no_grad():
        assert not mytorch.is_grad_enabled()
        b = a * a
    assert mytorch.is_grad_enabled() and b.op is None and not b.requires_grad and (a * a).requires_grad


def test_no_grad_ends_with_an_exception_and_nests():
    mode = no_grad()
    with pytest.raises(ZeroDivisionError), mode, mode, no_grad():
        raise ZeroDivisionError
    assert mytorch.is_grad_enabled()
    with no_grad():
        with no_grad():
            pass
        assert not mytorch.is_grad_enabled()


def test_no_grad_decorates_functions_also_recursive_ones():
    @no_grad()
    def countdown(n: int) -> list[bool]:
        """Its docstring."""
        return [mytorch.is_grad_enabled()] + (countdown(n - 1) if n else [])
    assert countdown(3) == [False] * 4 and mytorch.is_grad_enabled() and countdown.__doc__ == "Its docstring."


def test_no_grad_in_generators_ends_when_the_last_one_ends():
    def generate():
        with no_grad():
            yield
    first, second = generate(), generate()
    next(first), next(second)
    first.close()
    assert not mytorch.is_grad_enabled()
    second.close()
    assert mytorch.is_grad_enabled()


def test_no_grad_decorates_nothing_whose_body_runs_later():
    def generate():
        yield

    async def coroutine():
        return 1

    async def generate_async():
        yield
    for function in (generate, coroutine, generate_async):
        with pytest.raises(TypeError, match=f"cannot decorate {function.__name__}, a generator or coroutine"):
            no_grad()(function)


def test_no_grad_is_of_its_thread_alone():
    seen = []
    inside, done = threading.Event(), threading.Event()

    def other():
        with no_grad():
            inside.set()
            done.wait(10)
            seen.append(mytorch.is_grad_enabled())
    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    seen.append(mytorch.is_grad_enabled())
    done.set()
    thread.join()
    assert seen == [True, False] and mytorch.is_grad_enabled()


def test_a_value_is_a_node_and_a_tensor_is_a_value():
    assert issubclass(Tensor, Value) and issubclass(TensorTuple, Value)
    with pytest.raises(TypeError, match="Op defines no compute"):
        Op()(Tensor(1.0))
