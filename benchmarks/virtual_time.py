"""How long virtual time takes: large clusters, timing only, the trace in memory.

python benchmarks/virtual_time.py [WORKERS] [ITERATIONS]
"""

from __future__ import annotations

import sys
import time

import toolkit as tk


def main(workers: int = 1000, iterations: int = 100) -> None:
    """Print seconds and microseconds per event for two strategies."""
    simulator = tk.Simulator(workers, step=tk.lognormal(1.0, 0.3), link=tk.Link(1e-4, 1e9), nbytes=4e6)
    tk.simulate(tk.chain(tk.bsp(), tk.all_reduce(tk.ring)), tk.Simulator(2), until=tk.iterations(1))  # imports
    for policy in (tk.ssp(3), tk.elastic_bsp(15)):
        strategy = tk.chain(policy, tk.parameter_server(4, place="separate"))
        began = time.perf_counter()
        run = tk.simulate(strategy, simulator, until=tk.iterations(iterations))
        spent = time.perf_counter() - began
        print(f"{strategy!r}: {spent:.1f} s, {len(run.trace)} rows, {1e6 * spent / len(run.trace):.1f} us per row")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
