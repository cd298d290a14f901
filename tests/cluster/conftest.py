"""One cluster of real processes for all tests of this folder, and small problems for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import optax
import pytest
from distributed import Client
from distributed.deploy.subprocess import SubprocessCluster
from flax import nnx

import toolkit as tk

WORKERS = 4


class ConvNet(nnx.Module):
    """A convolution, batch normalisation and a linear layer on images of 6 x 6."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.linear = nnx.Linear(108, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        return self.linear(x.reshape(len(x), -1))


@pytest.fixture(scope="session")
def convolution() -> tk.Problem:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(70, 6, 6, 1)).astype(np.float32), random.integers(0, 4, 70)
    loss = optax.softmax_cross_entropy_with_integer_labels
    return tk.problem(lambda rngs: ConvNet(rngs), loss, train=(x, y), test=(x[:20], y[:20]), batch=5)


@pytest.fixture(scope="session")
def on() -> Iterator[tk.Dask]:
    with tk.Dask(workers=WORKERS, deadline=40.0) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Client]:
    """A client of three processes that somebody else started, with a scheduler in another."""
    with (
        SubprocessCluster(n_workers=3, worker_kwargs={"nthreads": 1}) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(3, timeout=60)
        yield client
