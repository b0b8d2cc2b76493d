"""Find the first layer that computes something else than PyTorch's: `python Task3/first_difference.py --help`.

For whoever changes mytorch or its kernels. How layers are compared, and why each alone, says layer_comparison.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import checkpoints
import extension
from options import number, whole
from utils import UserError, discard_output, prepare_output

if TYPE_CHECKING:  # what needs the extension is imported when that is built
    from layer_comparison import Comparison, Measured
    from mytorch import nn

MODELS = ("lenet", "minivgg", "minivgg-bn")
CLASSES, PICTURE = 10, (3, 32, 32)
LARGEST_BATCH = 64  # with which MiniVGG-BN takes 3.3 GB

DESCRIPTION = """\
Run one of our networks and PyTorch's on one batch, forward and backward, and print layer by layer how far they are
apart. Then name the first layer that is over the tolerance.
"""

EXPLANATION = """\
Every number is the largest difference from PyTorch in float64, relative to the largest magnitude there. Beside each
of ours is that of PyTorch's own float32: it shows what rounding alone amounts to. Our 3x3 convolutions of 16 channels
and more round to some 1e-5, as Winograd's algorithm costs a digit.

  the layer alone  each layer is given the numbers that ours was given in the run, so what others did wrong does not
                   count. "output" includes batch-norm's running statistics; "gradients" are those of the input and of
                   the parameters (that of a bias relative to the largest of weight and bias: before batch-norm it is
                   0). These are held to the tolerance.
  the whole run    each library's layers are given what its own layers before (and, for gradients, after) computed.
                   "gradients" are those of the output and of the parameters. Rounding adds up, and where a ReLU's
                   input is nearly 0 or a pooling window nearly has two maxima it can send a gradient another way.

The pictures and labels are random. Dropout is set to 0, since no two libraries drop the same features.

exit status: 0 no layer is over the tolerance; 1 one is, or an error, told in one line; 2 a bad command line
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=DESCRIPTION, epilog=EXPLANATION, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="lenet", help="the network (default: lenet)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE",
                        help="a best_model.pth or last_checkpoint.pth of this network, for 10 classes of 3x32x32 "
                             "pictures (default: initial weights from --seed)")
    parser.add_argument("--batch-size", type=whole(1, LARGEST_BATCH), default=8, metavar="N",
                        help="pictures in the batch (default: 8)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N",
                        help="of the pictures, the labels and the initial weights (default: 0)")
    parser.add_argument("--tolerance", type=number(0, above=True), default=1e-4, metavar="T",
                        help="largest relative difference that passes for rounding (default: 1e-4)")
    parser.add_argument("--eval", action="store_true",
                        help="evaluation mode: batch-norm uses its running statistics (default: training mode)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    prepare_output()
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        return report(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # of a file it was told already; what is left is the output's
        discard_output()
        print(f"error: the output cannot be written ({error.strerror or error})", file=sys.stderr)
        return 1


def report(options: argparse.Namespace) -> int:
    """Compare, print the table and the verdict; returns the exit status."""
    extension.ensure_built()
    from layer_comparison import compare_layers
    model = load_model(options.model, options.checkpoint, options.seed).train(not options.eval)
    random = np.random.default_rng(options.seed)
    images = random.standard_normal((options.batch_size, *PICTURE)).astype(np.float32)
    layers = compare_layers(model, images, random.integers(0, CLASSES, options.batch_size))

    mode, source = "evaluation" if options.eval else "training", options.checkpoint or f"seed {options.seed}"
    print(f"{options.model} in {mode} mode, weights of {source}, batch of {options.batch_size}: the largest relative "
          "differences from PyTorch in float64\n")
    print_table(layers, options.tolerance)
    first = next((layer for layer in layers if layer.largest().size > options.tolerance), None)
    if first is None:
        print("\nlarge differences in the whole run alone come from rounding, as --help explains\n"
              f"no layer is over the tolerance of {options.tolerance:g}")
        return 0
    print(f"\nthe first layer over the tolerance of {options.tolerance:g} is {first.name} ({first.kind}): "
          f"alone, its {first.largest().array} is off by {first.largest().size:.1e}")
    return 1


def load_model(name: str, path: Path | None, seed: int) -> nn.Module:
    """Our network without dropout, its weights from a checkpoint or, without one, from the seed."""
    import mytorch
    from models import get_model
    mytorch.manual_seed(seed)
    model = get_model(name, CLASSES, in_channels=PICTURE[0], image_size=PICTURE[1], dropout=0.0)
    if path is None:
        return model
    expected = {key: torch.from_numpy(value) for key, value in model.state_dict().items()}
    weights, _ = checkpoints.read_weights(path, expected)
    model.load_state_dict(weights)
    return model


def print_table(layers: list[Comparison], tolerance: float) -> None:
    """One line a layer, in the order of the forward pass; those over the tolerance are marked."""
    print(f"{'':34}{'the layer alone':^38}{'the whole run':^38}".rstrip())
    print((f"{'':34}" + 2 * f"{'output':^19}{'gradients':^19}").rstrip())
    print((f"{'layer':34}" + 4 * f"{'ours':>8}{'PyTorch':>9}  ").rstrip())
    for layer in layers:
        numbers = [layer.alone_output, layer.alone_gradients, layer.run_output, layer.run_gradients]
        mark = "<- over" if layer.largest().size > tolerance else ""
        print(f"{layer.name:14}{layer.kind:20}{''.join(map(_cell, numbers))}{mark}".rstrip())


def _cell(measured: Measured) -> str:
    return f"{measured.ours.size:8.1e}{measured.torch32.size:9.1e}  "


if __name__ == "__main__":
    sys.exit(main())
