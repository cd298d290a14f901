"""Small images: Fashion-MNIST (a subset is embedded), CIFAR-10 and CIFAR-100 from a folder of the user's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flax import nnx

from toolkit.data.cifar import cifar10, cifar100
from toolkit.data.fashion import fashion_mnist
from toolkit.data.sources import Source
from toolkit.models.cnn import CNN
from toolkit.models.resnet import ResNet
from toolkit.problems.checks import ProblemError
from toolkit.problems.measures import accuracy, cross_entropy
from toolkit.problems.problem import Problem, deferred

SETS: dict[str, tuple[tuple[int, int, int], int]] = {
    "fashion": ((28, 28, 1), 10),
    "fashion_complete": ((28, 28, 1), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
}
MODELS = ("cnn", "resnet8", "resnet20", "resnet50", "resnet110")


def images(which: str = "fashion", model: str = "cnn", batch: int = 32, data_dir: str | Path | None = None) -> Problem:
    """Classify small images with a convolutional network.

    Inputs [rows, height, width, channels] are pixels from 0 to 1: 28x28x1, or 32x32x3 of CIFAR.

    Parameters
    ----------
    which : {"fashion", "fashion_complete", "cifar10", "cifar100"}
        "fashion" is embedded: 10,000 training and 2,000 test images; the others are read from `data_dir`.
    model : {"cnn", "resnet8", "resnet20", "resnet50", "resnet110"}
        Two convolutions, or a residual network of this depth; all with batch norm.
    batch : int [rows], >= 1
        Rows per step and worker.
    data_dir : path, optional
        Where the files of the data set lie, on every machine that takes part.

    References
    ----------
    Xiao, Rasul, Vollgraf, "Fashion-MNIST", 2017. Krizhevsky, "Learning multiple layers of features from tiny
    images", 2009. He et al., "Deep residual learning for image recognition", 2016.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.problems.images(batch=64)
    images(which='fashion', model='cnn', batch=64)
    """
    if which not in SETS:
        raise ProblemError(f"There is no image set {which!r}. A set needs a reader. Use one of {', '.join(SETS)}.")
    shape, classes = SETS[which]
    build, blocks = network(model, shape, classes)
    folder = None if data_dir is None else str(data_dir)
    train, test = deferred(read, which, folder)
    where = "" if folder is None else f", data_dir={folder!r}"
    name = f"images(which={which!r}, model={model!r}, batch={batch}{where})"
    return Problem(name, build, cross_entropy, train, test, batch, {"accuracy": accuracy}, blocks)


def network(model: str, shape: tuple[int, int, int], classes: int) -> tuple[Callable[[nnx.Rngs], Any], tuple[str, ...]]:
    """How to build a model of this name, and the names of its blocks."""
    if model not in MODELS:
        raise ProblemError(f"There is no image model {model!r}. A name stands for one network. Use one of {MODELS}.")
    if model == "cnn":
        return partial(CNN, shape=shape, classes=classes), CNN.blocks
    depth = int(model.removeprefix("resnet"))
    return partial(ResNet, depth=depth, channels=shape[2], classes=classes), ResNet.blocks(depth)


def read(which: str, folder: str | None) -> tuple[Source, Source]:
    """Training and test rows of a set."""
    readers: dict[str, Callable[[], tuple[Source, Source]]] = {
        "fashion": fashion_mnist,
        "fashion_complete": lambda: fashion_mnist("complete", folder),
        "cifar10": lambda: cifar10(folder),
        "cifar100": lambda: cifar100(folder),
    }
    return readers[which]()
