"""What a synchronous step of two workers costs beyond the step itself and its all-reduce."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import optax

import toolkit as tk
from benchmarks.agents import Agents
from benchmarks.all_reduce import Rounds, repeats
from benchmarks.measuring import Result, compared, middle
from toolkit.kernels.applying import Applier
from toolkit.kernels.training import Learner

#: Milliseconds that a round may cost beyond its step and its all-reduce.
ALLOWED = 3.0
TURNS, STEPS, ROUNDS = 7, 30, 60

BSP = tk.chain(tk.bsp(), tk.all_reduce(tk.ring))


def results() -> Iterator[Result]:
    """Rounds, steps and all-reduces of the same processes, in turns."""
    problems = {"digits, MLP": tk.problems.digits(), "Fashion-MNIST, CNN": tk.problems.images()}
    with tk.Dask(workers=2) as on:
        for title, problem in problems.items():
            pairs = [turn(on, problem) for _ in range(TURNS)][1:]
            yield compared(f"BSP step, {title}, against local step, all-reduce and {ALLOWED:g} ms", pairs, "ms", 1.0)


def turn(on: tk.Dask, problem: tk.Problem) -> tuple[float, float]:
    """Milliseconds of a round, and what it may take."""
    run = tk.train(
        problem,
        BSP,
        optimizer="sgd(0.01)",
        on=on,
        until=tk.updates(ROUNDS),
        evaluate=tk.updates(10 * ROUNDS),
        progress=False,
    )
    ended = run.trace.query("kind == 'committed'")["ended"].to_numpy()[5:]
    round_ms = 1e3 * float(np.median(np.diff(ended)))
    with Agents(on).holding(problem, BSP) as agents:
        nbytes = 4 * agents.cluster.layout.size
        sum_ms = 1e3 * middle(Rounds(agents).seconds(repeats(nbytes)))
        steps = on.client.run(local_step, problem, STEPS, workers=list(agents.processes.values()))
    return round_ms, 1e3 * max(steps.values()) + sum_ms + ALLOWED


def local_step(problem: tk.Problem, count: int) -> float:
    """Seconds of a gradient and an optimizer step in this process."""
    learner, applier = Learner(problem, 0), Applier(optax.sgd(0.01))
    vector, local = learner.initial()
    state, rows = applier.init(vector), problem.train.take(np.arange(problem.batch))
    times: list[float] = []
    for i in range(count + 3):
        began = time.perf_counter()
        step: Any = learner.gradient(vector, local, rows, (0, 0, i))
        vector, state = applier.apply(vector, state, step.update)
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


if __name__ == "__main__":
    for result in results():
        print(result, flush=True)
