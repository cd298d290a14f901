"""All-reduce by gloo, of PyTorch and of JAX, in two processes of one thread and one core each.

python -m benchmarks.gloo BACKEND RANK CORE PORT answers lines "BYTES REPEATS" with the seconds of each.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.measuring import cores


class Gloo:
    """Two processes of a back end that wait to be asked.

    Parameters
    ----------
    backend : {"torch", "jax"}
    """

    def __init__(self, backend: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        single = {name: "1" for name in ("NPROC", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gloo", backend, str(rank), str(core), str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **single, "JAX_PLATFORMS": "cpu"},
            )
            for rank, core in zip(range(2), (cores() * 2)[:2], strict=True)
        ]

    def all_reduce(self, nbytes: int, repeats: int) -> list[float]:
        """Seconds of each of some all-reduces at the first process."""
        for process in self._processes:
            assert process.stdin is not None
            print(nbytes, repeats, file=process.stdin, flush=True)
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return [max(pair) for pair in zip(*answers, strict=True)]

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()


def torch_gloo(rank: int, port: int) -> Callable[[int], Callable[[], None]]:
    """The all-reduce of torch.distributed."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)

    def of(nbytes: int) -> Callable[[], None]:
        values = torch.zeros(nbytes // 4)
        return lambda: dist.all_reduce(values)

    return of


def jax_gloo(rank: int, port: int) -> Callable[[int], Callable[[], None]]:
    """A compiled psum over two processes."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as Spec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    mesh = jax.make_mesh((2,), ("worker",))
    sharding = NamedSharding(mesh, Spec("worker"))

    def of(nbytes: int) -> Callable[[], None]:
        local = np.zeros((1, nbytes // 4), np.float32)
        values = jax.make_array_from_process_local_data(sharding, local)
        total = jax.jit(
            jax.shard_map(lambda x: jax.lax.psum(x, "worker"), mesh=mesh, in_specs=Spec("worker"), out_specs=Spec())
        )
        return lambda: jax.block_until_ready(total(values))

    return of


def main(backend: str, rank: str, core: str, port: str) -> None:
    """Answer until the input ends."""
    os.sched_setaffinity(0, {int(core)})
    sink = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    of = {"torch": torch_gloo, "jax": jax_gloo}[backend](int(rank), int(port))
    ready: dict[int, Callable[[], None]] = {}
    for line in sys.stdin:
        nbytes, repeats = map(int, line.split())
        if nbytes not in ready:
            ready[nbytes] = of(nbytes)
            ready[nbytes]()
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            ready[nbytes]()
            seconds.append(time.perf_counter() - began)
        print(json.dumps(seconds), file=sink, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
