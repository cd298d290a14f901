"""What passes Dask's scheduler in a run, and what a coordinator takes of a round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

import toolkit as tk
from benchmarks.agents import flat
from benchmarks.measuring import Result, bounded, compared

#: Bytes and messages per round that may pass the scheduler, and bytes of two models, of which the larger adds nothing.
ALLOWED, MESSAGES, SMALL, LARGE = 64 * 1024, 4.0, 1000, 50_000_000
WORKERS = (2, 4, 8, 16)
#: Seconds of a sleeping kernel, so that many workers do not compete for few cores.
PACE = 0.1

BSP = tk.chain(tk.bsp(), tk.all_reduce(tk.ring))


def results() -> Iterator[Result]:
    """Bytes and messages per round at the scheduler; milliseconds of the coordinator by number of workers."""
    yield from scheduler()
    for workers in WORKERS:
        with tk.Dask(workers=workers, pace=PACE) as on:
            run = train(on, flat(SMALL), 30)
            yield bounded(f"coordinator per round, {workers} workers", coordinator(run.trace), 1e3 * PACE, "ms")


def train(on: tk.Dask, problem: tk.Problem, rounds: int) -> tk.Run:
    """Some rounds of BSP."""
    until, never = tk.updates(rounds), tk.updates(100_000)
    return tk.train(problem, BSP, optimizer="sgd(0.1)", on=on, until=until, evaluate=never, progress=False)


def scheduler() -> Iterator[Result]:
    """Rows of two workers; rounds take time, so that heartbeats and progress are as frequent for any model."""
    with tk.Dask(workers=2, pace=PACE) as on:
        on.client.run_on_scheduler(watch)
        small, large = ([per_round(on, flat(nbytes)) for _ in range(3)] for nbytes in (SMALL, LARGE))
    for words, figures in (("1 kB", small), ("50 MB", large)):
        nbytes, messages = zip(*figures, strict=True)
        yield bounded(f"scheduler, bytes per round, model of {words}", nbytes, ALLOWED, "bytes")
        yield bounded(f"scheduler, messages per round, model of {words}", messages, MESSAGES, "messages")
    pairs = [(b[0], a[0]) for a, b in zip(small, large, strict=True)]
    yield compared("scheduler, bytes per round, model of 50 MB against 1 kB", pairs, "bytes", 0.5)


def per_round(on: tk.Dask, problem: tk.Problem, rounds: tuple[int, int] = (10, 40)) -> tuple[float, float]:
    """Bytes and messages at the scheduler per round: what a longer run adds to a shorter one."""
    seen = []
    for count in rounds:
        before = on.client.run_on_scheduler(look)
        train(on, problem, count)
        seen.append([b - a for a, b in zip(before, on.client.run_on_scheduler(look), strict=True)])
    nbytes, messages = ((more - few) / (rounds[1] - rounds[0]) for few, more in zip(*seen, strict=True))
    return nbytes, messages


def watch(dask_scheduler: Any) -> None:
    """Count, at the scheduler, messages and the bytes through its sockets."""
    from distributed.comm.tcp import TCP
    from tornado.iostream import IOStream

    port, counted = int(dask_scheduler.address.rpartition(":")[2]), {"bytes": 0, "messages": 0}
    read, write = IOStream.read_from_fd, IOStream.write_to_fd
    take, put = TCP.read, TCP.write

    def count(stream: Any, size: int | None) -> int | None:
        if stream.socket is not None and stream.socket.getsockname()[1] == port:
            counted["bytes"] += size or 0
        return size

    async def taken(comm: Any, *args: Any, **kwargs: Any) -> Any:
        message = await take(comm, *args, **kwargs)
        counted["messages"] += 1
        return message

    async def sent(comm: Any, *args: Any, **kwargs: Any) -> Any:
        counted["messages"] += 1
        return await put(comm, *args, **kwargs)

    IOStream.read_from_fd = lambda stream, buffer: count(stream, read(stream, buffer))
    IOStream.write_to_fd = lambda stream, data: count(stream, write(stream, data))
    TCP.read, TCP.write = taken, sent
    dask_scheduler.counted = counted


def look(dask_scheduler: Any) -> tuple[int, int]:
    """Bytes and messages so far."""
    return dask_scheduler.counted["bytes"], dask_scheduler.counted["messages"]


def coordinator(trace: pd.DataFrame) -> list[float]:
    """Milliseconds of each round in which everybody waits for the coordinator."""
    rounds = trace.query("kind == 'apply' and round > 4").groupby("round")
    sums = trace.query("kind == 'reduce' and round > 4").groupby("round")["began"].max()
    steps = trace.query("kind == 'compute'").sort_values("ended")
    found = []
    for number, applied in rounds:
        computed = steps.loc[steps.ended <= sums[number], "ended"].max()
        following = steps.loc[steps.wanted >= applied.ended.max(), "wanted"].min()
        if pd.notna(following):
            found.append(1e3 * float(sums[number] - computed + following - applied.ended.max()))
    return found


if __name__ == "__main__":
    for result in results():
        print(result, flush=True)
