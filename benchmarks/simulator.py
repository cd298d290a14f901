"""How long virtual time takes: large clusters, timing only, the trace in memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import toolkit as tk
from benchmarks.measuring import Result, bounded, middle

#: Workers, iterations of each, and seconds that they may take on one core.
WORKERS, ITERATIONS, ALLOWED = 1000, 100, 10.0
#: Numbers of workers over which the time of an event is followed, and how many events there are at least.
GROWTH, EVENTS = (16, 64, 256, 1024, 4096), 60_000

SERVERS = tk.parameter_server(4, place="separate")
LARGE = {"ssp(3)": tk.chain(tk.ssp(3), SERVERS), "elastic_bsp(15)": tk.chain(tk.elastic_bsp(15), SERVERS)}
MORE = {"bsp()": tk.chain(tk.bsp(), SERVERS), "asp(), gossip": tk.chain(tk.asp(), tk.gossip(tk.random_peer))}


def results() -> Iterator[Result]:
    """Seconds of the large runs, and how the time of an event grows with the number of workers."""
    simulated(LARGE["ssp(3)"], 16, 4)  # imports
    for name, strategy in LARGE.items():
        seconds, _ = simulated(strategy, WORKERS, ITERATIONS)
        yield bounded(f"simulator, {WORKERS} x {ITERATIONS}, {name}", [seconds], ALLOWED, "s")
    for name, strategy in {**LARGE, **MORE}.items():
        yield growth(name, strategy)


def growth(name: str, strategy: tk.Strategy) -> Result:
    """The largest growth of the time of an event against the smallest cluster, over that of the logarithm."""
    spent: dict[int, float] = {}
    for workers in GROWTH:
        times = []
        for _ in range(3):
            seconds, rows = simulated(strategy, workers, max(2, EVENTS // (17 * workers)))
            times.append(seconds / rows)
        spent[workers] = 1e6 * middle(times)
    few = GROWTH[0]
    worst = max(GROWTH[1:], key=lambda n: spent[n] / math.log(n))
    allowed = spent[few] * math.log(worst) / math.log(few)
    return bounded(f"simulator, event at {worst} workers, {name}, by log n from {few}", [spent[worst]], allowed, "us")


def simulated(strategy: tk.Strategy, workers: int, iterations: int) -> tuple[float, int]:
    """Seconds of a run and rows of its trace."""
    simulator = tk.Simulator(workers, step=tk.lognormal(1.0, 0.3), link=tk.Link(1e-4, 1e9), nbytes=4e6)
    began = time.perf_counter()
    run = tk.simulate(strategy, simulator, until=tk.iterations(iterations))
    return time.perf_counter() - began, len(run.trace)


if __name__ == "__main__":
    for result in results():
        print(result, flush=True)
