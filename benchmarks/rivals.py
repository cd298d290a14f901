"""The same networks in PyTorch, and their training with DistributedDataParallel over gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

RATE = 0.01


def convolution(channels: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, outputs, size, stride, size // 2, bias=False)


class Stem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.norm = convolution(3, 16, 3, 1), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.kernel(x)), inplace=True)


class Unit(nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if channels == outputs else 2
        self.first, self.first_norm = convolution(channels, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.second, self.second_norm = convolution(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        self.projection = convolution(channels, outputs, 1, 1) if stride > 1 else None
        self.projection_norm = nn.BatchNorm2d(outputs) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(x)), inplace=True)
        hidden = self.second_norm(self.second(hidden))
        if self.projection is not None and self.projection_norm is not None:
            x = self.projection_norm(self.projection(x[:, :, 1::2, 1::2]))
        return functional.relu(hidden + x, inplace=True)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x.mean((2, 3)))


class ResNet20(nn.Sequential):
    """Depth 20 in channels-last memory, which is faster here."""

    def __init__(self) -> None:
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        super().__init__()
        self.add_module("stem", Stem())
        for k, (before, after) in enumerate(pairwise(widths)):
            self.add_module(f"unit{k}", Unit(before, after))
        self.add_module("head", Pooled())
        self.to(memory_format=torch.channels_last)

    @staticmethod
    def images(x: np.ndarray) -> Tensor:
        """PyTorch pads a strided convolution before the image, XLA behind it: mirrored, they are one.

        Of a mirrored image the projections take the other half of the pixels.
        """
        mirrored = np.ascontiguousarray(x[:, ::-1, ::-1].transpose(0, 3, 1, 2))
        return torch.from_numpy(mirrored).contiguous(memory_format=torch.channels_last)

    @staticmethod
    def weights(name: str, values: np.ndarray) -> np.ndarray:
        return values[::-1, ::-1].transpose(3, 2, 0, 1) if values.ndim == 4 else values.T


class Filters(nn.Module):
    def __init__(self, channels: int, even: bool) -> None:
        super().__init__()
        self.kernel, self.norm = nn.Conv1d(channels, 16, 8, padding="same"), nn.BatchNorm1d(16, 1e-3, 0.01)
        self.pool = nn.MaxPool1d(3, 2, padding=0 if even else 1, ceil_mode=even)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.pool(functional.relu(self.kernel(x), inplace=True)))


class Redshift(nn.Module):
    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.first, self.second, self.third = Filters(1, True), Filters(16, True), Filters(16, False)
        self.hidden, self.head, self.dropout = nn.Linear(3568, 512), nn.Linear(512, 800), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.third(self.second(self.first(x))).flatten(1)
        return self.head(self.dropout(self.hidden(self.dropout(x))))

    @staticmethod
    def images(x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 2, 1)))

    @staticmethod
    def weights(name: str, values: np.ndarray) -> np.ndarray:
        if name == "hidden.kernel":  # PyTorch flattens channel by channel
            return values.reshape(223, 16, 512).transpose(2, 1, 0).reshape(512, -1)
        return values.transpose(2, 1, 0) if values.ndim == 3 else values.T


MODELS: dict[str, Any] = {"ResNet-20": ResNet20, "redshift CNN": Redshift}
# The derivative of the penalty on one layer is that of a weight decay.
DECAY = {"hidden.weight": 0.4}


def training(rank: int, model: str, x: np.ndarray, y: np.ndarray, rendezvous: str = "") -> Callable[[], None]:
    """A step of plain SGD on these rows: with DDP between two processes that meet at a file, or alone."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    network: nn.Module = MODELS[model]()
    images, targets = MODELS[model].images(x), torch.from_numpy(y).long()
    groups = [{"params": [values], "weight_decay": DECAY.get(name, 0.0)} for name, values in network.named_parameters()]
    optimizer = torch.optim.SGD(groups, RATE)
    if rendezvous:
        torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
        network = DistributedDataParallel(network)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(network(images), targets).backward()
        optimizer.step()

    return step


def gradient(model: str, weights: Mapping[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The gradient of the mean cross-entropy in float64, without dropout; names and layout are those of PyTorch."""
    kind = MODELS[model]
    network = (kind(dropout=0.0) if kind is Redshift else kind()).double()
    state = network.state_dict()
    for name, values in weights.items():
        state[translated(name)].copy_(torch.tensor(kind.weights(name, values).copy()))
    images, targets = kind.images(x).double(), torch.from_numpy(y).long()
    functional.cross_entropy(network(images), targets).backward()
    learned = dict(network.named_parameters())
    return {name: (w.grad + DECAY.get(name, 0.0) * w).detach().numpy() for name, w in learned.items()}


def translated(name: str) -> str:
    """What PyTorch calls a tensor."""
    *path, last = name.split(".")
    return ".".join((*path, {"kernel": "weight", "scale": "weight"}.get(last, last)))
