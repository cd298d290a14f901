"""Asynchronous training over parameter servers, against what the transport of the same messages alone allows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import toolkit as tk
from benchmarks.agents import Agents, flat
from benchmarks.measuring import Result, compared, in_turns
from toolkit.core.messages import Key, Send, Task, Worker

MEGABYTE = 1_000_000
SIZES, SHARDS = (1, 10, 40), (1, 2)
#: Two workers in one process, so that one computes while the other waits, and the servers in another.
HOSTS = {1: 0, "s1": "s0"}
#: Seconds of a run, those that do not count, turns, and the part of the bound that is to be reached.
SECONDS, WARM, TURNS, TARGET = 2.0, 0.5, 5, 0.7


def results() -> Iterator[Result]:
    """Updates per second by Dask's connections and by shared memory."""
    for shards in SHARDS:
        strategy = tk.chain(tk.asp(), tk.parameter_server(shards, place="separate"))
        hosts = {place: host for place, host in HOSTS.items() if place != "s1" or shards > 1}
        with tk.Dask(workers=2, hosts=hosts) as near, tk.Dask(workers=2, hosts=hosts) as far:
            Agents(far).by_dask()
            for size in SIZES:
                yield from rows(near, far, flat(size * MEGABYTE), strategy, f"server, {shards} shard(s), {size} MB")


def rows(near: tk.Dask, far: tk.Dask, problem: tk.Problem, strategy: tk.Strategy, case: str) -> Iterator[Result]:
    """The rows of one size: those of connections are the same for processes of different machines."""
    ours = partial(updates, far, problem, strategy)
    shared = partial(updates, near, problem, strategy)
    connections = partial(messages, far, problem, strategy)
    memory = partial(messages, near, problem, strategy)
    for words, run, bound, target in (
        ("Dask's connections, against these alone", ours, connections, TARGET),
        ("shared memory, against Dask's connections alone", shared, connections, TARGET),
        ("shared memory, against this alone", shared, memory, None),
    ):
        pairs = in_turns(run, bound, turns=TURNS, warm=1)
        yield compared(f"{case}, {words}", pairs, "updates/s", target, less=False)


def updates(on: tk.Dask, problem: tk.Problem, strategy: tk.Strategy) -> float:
    """Updates per second of a run."""
    until, never = tk.seconds(SECONDS), tk.updates(1_000_000)
    run = tk.train(problem, strategy, optimizer="sgd(0.1)", on=on, until=until, evaluate=never, progress=False)
    times = run.trace.query(f"kind == 'committed' and ended > {WARM}")["ended"]
    return float((len(times) - 1) / (times.max() - times.min()))


def messages(on: tk.Dask, problem: tk.Problem, strategy: tk.Strategy) -> float:
    """Pulls and pushes of the whole model per second, by the same processes, with nothing between them."""
    with Agents(on).holding(problem, strategy) as agents:
        count = max(20, 2_000 * MEGABYTE // (4 * agents.cluster.layout.size))
        servers = {name: home.span for name, home in agents.cluster.homes.items() if home.role == "server"}
        before: dict[Worker, tuple[Key, ...]] = {}
        tasks: list[Task] = []
        for i in range(count):
            for w in agents.cluster.workers:
                known = before.get(w, ())
                pulls = [Send(("pull", w, i, s), s, w, "params", part, after=known) for s, part in servers.items()]
                arrived = tuple(pull.key for pull in pulls)
                pushes = [Send(("push", w, i, s), w, s, "update", part, after=arrived) for s, part in servers.items()]
                before[w] = tuple(push.key for push in pushes)
                tasks += [*pulls, *pushes]
        ended = sorted(row[3][2] for row in agents.perform(tasks, len(tasks)) if row[1][0] == "push")
        half = ended[len(ended) // 4 :]
        return (len(half) - 1) / len(servers) / (half[-1] - half[0])


if __name__ == "__main__":
    for result in results():
        print(result, flush=True)
