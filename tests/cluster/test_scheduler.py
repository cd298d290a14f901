"""What passes Dask's scheduler, in a process of its own: as much for a model of 50 MB as for one of 1 kB."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from distributed import Client
from distributed.deploy.subprocess import SubprocessCluster
from flax import nnx

import toolkit as tk

pytestmark = pytest.mark.cluster

ROUNDS = 10
SMALL, LARGE = (16, 16), (2500, 5000)  # 1 kB and 50 MB of weights


def watch(dask_scheduler: Any) -> None:
    """Count, at the scheduler, the bytes through its sockets; and make Dask's heartbeats rare, which go by seconds."""
    import distributed.scheduler
    from tornado.iostream import IOStream

    port, counted = int(dask_scheduler.address.rpartition(":")[2]), {"bytes": 0}
    read, write = IOStream.read_from_fd, IOStream.write_to_fd

    def count(stream: Any, size: int | None) -> int | None:
        if stream.socket is not None and stream.socket.getsockname()[1] == port:
            counted["bytes"] += size or 0
        return size

    IOStream.read_from_fd = lambda stream, buffer: count(stream, read(stream, buffer))
    IOStream.write_to_fd = lambda stream, data: count(stream, write(stream, data))
    distributed.scheduler.heartbeat_interval = lambda workers: 60.0
    dask_scheduler.counted = counted


def look(dask_scheduler: Any) -> tuple[int, int]:
    """Bytes so far, and the memory of the scheduler."""
    import psutil

    return dask_scheduler.counted["bytes"], psutil.Process().memory_info().rss


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Three processes that somebody else started, and a scheduler in another."""
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    with SubprocessCluster(n_workers=3, worker_kwargs={"nthreads": 1}) as cluster, Client(cluster) as client:
        client.wait_for_workers(3, timeout=60)
        client.run_on_scheduler(watch)
        yield client
    cloudpickle.unregister_pickle_by_value(here)


def linear(shape: tuple[int, int]) -> tk.Problem:
    x, y = np.ones((8, shape[0]), np.float32), np.ones((8, shape[1]), np.float32)

    def build(rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Linear(*shape, use_bias=False, kernel_init=nnx.initializers.zeros_init(), rngs=rngs)

    def loss(outputs, targets):
        return ((outputs - targets) ** 2).mean(axis=1)

    return tk.problem(build, loss, train=(x, y), test=(x[:1], y[:1]), batch=1)


@pytest.mark.filterwarnings("error", "ignore::DeprecationWarning", "ignore:.*processes compute on:UserWarning")
@pytest.mark.parametrize("exchange", [tk.all_reduce(tk.ring), tk.parameter_server(2)], ids=repr)
def test_scheduler_traffic_does_not_grow_with_the_model(client, exchange):
    on = tk.Dask(client, workers=2, pace=0.3)  # rounds of like length: progress is told four times a second
    passed, grown = [], []
    for shape in (SMALL, LARGE):
        before, memory = client.run_on_scheduler(look)
        run = tk.train(
            linear(shape),
            tk.chain(tk.bsp(), exchange),
            optimizer="sgd(0.01)",
            on=on,
            until=tk.updates(ROUNDS),
            evaluate=tk.updates(1000),
            progress=False,
        )
        after, memory_after = client.run_on_scheduler(look)
        assert run.status == "finished"
        assert run.trace.nbytes.sum() >= ROUNDS * 4 * shape[0] * shape[1]
        passed.append((after - before) / ROUNDS)
        grown.append(memory_after - memory)
    print(passed, grown)
    assert 0 < passed[1] < 64 * 1024
    assert passed[1] < 1.5 * passed[0]
    assert max(grown) < 20e6
