"""What passes Dask's scheduler, in a process of its own: as much for a model of 50 MB as for one of 1 kB."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from distributed import Client
from flax import nnx

import toolkit as tk

#: Among the warnings that are errors: a large graph, a large object.
pytestmark = [
    pytest.mark.cluster,
    *(
        pytest.mark.filterwarnings(words)
        for words in ("error", "ignore::DeprecationWarning", "ignore:.*processes compute on:UserWarning")
    ),
]

ROUNDS = 12
SMALL, LARGE = (16, 16), (2500, 5000)  # 1 kB and 50 MB of weights


def watch(dask_scheduler: Any) -> None:
    """Count, at the scheduler, the bytes through its sockets."""
    from tornado.iostream import IOStream

    port, counted = int(dask_scheduler.address.rpartition(":")[2]), {"bytes": 0}
    read, write = IOStream.read_from_fd, IOStream.write_to_fd

    def count(stream: Any, size: int | None) -> int | None:
        if stream.socket is not None and stream.socket.getsockname()[1] == port:
            counted["bytes"] += size or 0
        return size

    IOStream.read_from_fd = lambda stream, buffer: count(stream, read(stream, buffer))
    IOStream.write_to_fd = lambda stream, data: count(stream, write(stream, data))
    dask_scheduler.counted = counted


def look(dask_scheduler: Any) -> tuple[int, int]:
    """Bytes so far, and the memory of the scheduler."""
    import psutil

    return dask_scheduler.counted["bytes"], psutil.Process().memory_info().rss


def calm(dask_scheduler: Any) -> None:
    """Make Dask's heartbeats rare: they go by seconds and not by rounds."""
    import distributed.scheduler

    distributed.scheduler.heartbeat_interval = lambda workers: 600.0


def quiet() -> None:
    """Make a coordinator tell of its progress rarely: that goes by seconds too."""
    from toolkit.runtime.cluster import news

    news.PACE = 600.0


@pytest.fixture(scope="module")
def client(elsewhere: Client) -> Iterator[Client]:
    """A client of a cluster whose scheduler counts."""
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    elsewhere.run_on_scheduler(watch)
    yield elsewhere
    cloudpickle.unregister_pickle_by_value(here)


def linear(shape: tuple[int, int]) -> tk.Problem:
    x, y = np.ones((8, shape[0]), np.float32), np.ones((8, shape[1]), np.float32)

    def build(rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Linear(*shape, use_bias=False, kernel_init=nnx.initializers.zeros_init(), rngs=rngs)

    def loss(outputs, targets):
        return ((outputs - targets) ** 2).mean(axis=1)

    return tk.problem(build, loss, train=(x, y), test=(x[:1], y[:1]), batch=1)


def passed(client: Client, shape: tuple[int, int], exchange: tk.Strategy) -> tuple[int, int]:
    """Bytes through the scheduler in a run over some rounds, and by how much its memory grew."""
    (bytes_before, memory_before), nbytes = client.run_on_scheduler(look), 4 * shape[0] * shape[1]
    run = tk.train(
        linear(shape),
        tk.chain(tk.bsp(), exchange),
        optimizer="sgd(0.01)",
        on=tk.Dask(client, workers=2),
        until=tk.updates(ROUNDS),
        evaluate=tk.updates(1000),
        progress=False,
    )
    bytes_after, memory_after = client.run_on_scheduler(look)
    assert run.status == "finished"
    assert run.trace.nbytes.sum() >= ROUNDS * nbytes, "the model has travelled, but not this way"
    return bytes_after - bytes_before, memory_after - memory_before


@pytest.mark.parametrize("exchange", [tk.all_reduce(tk.ring), tk.parameter_server(2)], ids=repr)
def test_a_large_model_stays_away_from_the_scheduler(client, exchange):
    nbytes, grown = passed(client, LARGE, exchange)
    assert 0 < nbytes < ROUNDS * 64 * 1024
    assert grown < 20e6


def test_traffic_does_not_grow_with_the_model(client):
    """Without what goes by seconds, of which a slower round gets more: heartbeats and progress."""
    client.run_on_scheduler(calm)
    client.run(quiet)
    time.sleep(1.0)  # each worker learns of it by its next heartbeat
    small, large = (passed(client, shape, tk.parameter_server(2))[0] for shape in (SMALL, LARGE))
    assert 0 < large < 1.5 * small
