"""Asynchronous training over parameter servers, against what the transport of the same messages alone allows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import toolkit as tk
from benchmarks.agents import Agents, flat
from benchmarks.measuring import Result, compared, in_turns
from toolkit.core.messages import Send, Task

MEGABYTE = 1_000_000
SIZES = (1, 10, 40)

#: Seconds of a run, and the part of the bound that is to be reached.
SECONDS, TARGET = 2.0, 0.7


def results() -> Iterator[Result]:
    """Updates per second of one worker and its servers, each in a process of its own."""
    for shards in (1, 2):
        strategy = tk.chain(tk.asp(), tk.parameter_server(shards, place="separate"))
        with tk.Dask(workers=1) as on:
            for size in SIZES:
                pairs = in_turns(
                    partial(updates, on, flat(size * MEGABYTE), strategy),
                    partial(bound, on, flat(size * MEGABYTE), strategy, max(20, 800 // size)),
                    turns=5,
                    warm=1,
                )
                yield compared(f"server, {shards} shard(s), {size} MB", pairs, "updates/s", TARGET, less=False)


def updates(on: tk.Dask, problem: tk.Problem, strategy: tk.Strategy) -> float:
    """Updates per second of a run, after its first half second."""
    run = tk.train(problem, strategy, optimizer="sgd(0.1)", on=on, until=tk.seconds(SECONDS), progress=False)
    times = run.trace.query("kind == 'committed' and ended > 0.5")["ended"]
    return float((len(times) - 1) / (times.max() - times.min()))


def bound(on: tk.Dask, problem: tk.Problem, strategy: tk.Strategy, count: int) -> float:
    """Pulls and pushes per second of the same processes."""
    with Agents(on).holding(problem, strategy) as agents:
        return messages(agents, count)


def messages(agents: Agents, count: int) -> float:
    """Pulls and pushes of the whole model per second, with nothing between them."""
    servers = {name: home.span for name, home in agents.cluster.homes.items() if home.role == "server"}
    tasks: list[Task] = []
    before: tuple[tuple[str | int, ...], ...] = ()
    for i in range(count):
        pulls = [Send(("pull", 0, i, s), s, 0, "params", part, after=before) for s, part in servers.items()]
        arrived = tuple(pull.key for pull in pulls)
        pushes = [Send(("push", 0, i, s), 0, s, "update", part, after=arrived) for s, part in servers.items()]
        before = tuple(push.key for push in pushes)
        tasks += [*pulls, *pushes]
    rows = agents.perform(tasks, len(tasks))
    ends = sorted(row[3][2] for row in rows if row[1][0] == "push")[len(servers) - 1 :: len(servers)]
    return (len(ends) - 1) / (ends[-1] - ends[0])


if __name__ == "__main__":
    for result in results():
        print(result, flush=True)
