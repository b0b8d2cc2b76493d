"""The networks are the ones that the README names: their layers in order, their sizes, and the pictures they take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models import MODELS, BasicBlock, get_model
from utils import UserError

SMALLEST = {"lenet": 16, "minivgg": 8, "convnet": 4, "resnet18": 9, "resnet34-cifar": 17}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def conv_norm_relu(in_channels: int, out_channels: int, size: int) -> list[nn.Module]:
    return [nn.Conv2d(in_channels, out_channels, size, padding=size // 2), nn.BatchNorm2d(out_channels), nn.ReLU()]


LENET = nn.Sequential(
    nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
MINIVGG = nn.Sequential(
    *conv_norm_relu(3, 64, 3), *conv_norm_relu(64, 64, 3), nn.MaxPool2d(2),
    *conv_norm_relu(64, 128, 3), *conv_norm_relu(128, 128, 3), nn.MaxPool2d(2),
    *conv_norm_relu(128, 256, 3), *conv_norm_relu(256, 256, 3), nn.MaxPool2d(2),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, 10))
CONVNET = nn.Sequential(
    *conv_norm_relu(1, 16, 5), nn.MaxPool2d(2), *conv_norm_relu(16, 32, 5), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


@pytest.mark.parametrize("name, plain, channels, size",
                         [("lenet", LENET, 3, 32), ("minivgg", MINIVGG, 3, 32), ("convnet", CONVNET, 1, 28)])
def test_a_network_is_the_plain_sequence_of_its_layers(name, plain, channels, size):
    model = get_model(name, 10, channels, size)
    layers = [module for module in model.modules() if not list(module.children())]
    assert [str(layer) for layer in layers] == [str(layer) for layer in plain]
    plain.load_state_dict(dict(zip(plain.state_dict(), model.state_dict().values(), strict=True)))
    images = torch.randn(4, channels, size, size)
    assert torch.equal(model.eval()(images), plain.eval()(images))


@pytest.mark.parametrize("name, count", [("lenet", 62_006), ("minivgg", 1_149_770), ("resnet18", 11_173_962),
                                         ("resnet34-cifar", 21_264_938)])
def test_parameter_counts_on_cifar10(name, count):
    assert parameters(get_model(name)) == count


def test_parameter_count_on_mnist():
    assert parameters(get_model("convnet", in_channels=1, image_size=28)) == 29_034


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_logits_have_a_number_for_each_class_and_train_every_parameter(name, channels):
    model = get_model(name, num_classes=7, in_channels=channels)
    logits = model(torch.randn(2, channels, 32, 32))
    assert logits.shape == (2, 7) and logits.dtype == torch.float32
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_the_smallest_picture_trains_alone_and_a_smaller_one_is_refused(name):
    size = SMALLEST[name]
    model = get_model(name, image_size=size)
    assert model.train()(torch.randn(1, 3, size, size)).shape == (1, 10)
    with pytest.raises(UserError, match=f"{name} .*{size - 1}x{size - 1}.* --image-size {size}"):
        get_model(name, image_size=size - 1)


@pytest.mark.parametrize("name", MODELS)
def test_odd_sizes_are_taken(name):
    size = SMALLEST[name] + 13
    assert get_model(name, image_size=size)(torch.randn(2, 3, size, size)).shape == (2, 10)


def test_an_unknown_network_and_no_channels_are_refused():
    with pytest.raises(UserError, match="'vgg'.*lenet, minivgg"):
        get_model("vgg")
    with pytest.raises(UserError, match="lenet .* 0 channels"):
        get_model("lenet", in_channels=0)


def test_dropout_reaches_the_classifier_of_minivgg():
    assert [m.p for m in get_model("minivgg", dropout=0.2).modules() if isinstance(m, nn.Dropout)] == [0.2]


@pytest.mark.parametrize("name, stem, blocks, sides", [
    ("resnet18", 64, [2, 2, 2, 2], [32, 16, 8, 4]),
    ("resnet34-cifar", 32, [3, 4, 6, 3], [16, 8, 4, 2]),
])
def test_a_resnet_is_one_flat_sequence_whose_groups_halve_the_picture(name, stem, blocks, sides):
    model = get_model(name).eval()
    assert type(model) is nn.Sequential
    assert [type(layer) for layer in model] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, *[BasicBlock] * sum(blocks),
                                                nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear]
    images, shapes = torch.randn(1, 3, 32, 32), []
    for layer in model:
        images = layer(images)
        shapes.append(tuple(images.shape[1:]))
    assert shapes[0] == (stem, 32, 32)
    expected = [(width, side, side) for width, side, count in zip((64, 128, 256, 512), sides, blocks, strict=True)
                for _ in range(count)]
    assert shapes[3:-3] == expected and shapes[-1] == (10,)


def test_a_basic_block_adds_its_input():
    block = BasicBlock(4, 4, stride=1).eval()
    nn.init.zeros_(block.residual[-1].weight)  # the last batch-norm's scale: nothing is left of the convolutions
    images = torch.randn(2, 4, 5, 5)
    assert torch.equal(block(images), images.relu())
