"""The whole training step, ours and PyTorch's: two workers, and one process alone.

python -m benchmarks.training_step
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import toolkit as tk
from benchmarks import rivals
from benchmarks.measuring import Result, bounded, compared, cores, in_turns
from benchmarks.stepping import WARM, stepping
from toolkit.kernels.applying import Applier
from toolkit.kernels.training import Learner

#: Steps of a burst, turns, turns that do not count; at batch 128 a burst takes some seconds.
STEPS, TURNS, IDLE = 6, 9, 1


class Case(NamedTuple):
    build: Callable[..., Any]
    blocks: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int
    target: float


CASES = {
    "redshift CNN": Case(tk.models.RedshiftCNN, tk.models.RedshiftCNN.blocks, (1780, 1), 800, 1.0),
    "ResNet-20": Case(partial(tk.models.ResNet, depth=20), tk.models.ResNet.blocks(20), (32, 32, 3), 10, 0.85),
}


def results() -> Iterator[Result]:
    """Every model and batch: samples per second of two workers, seconds of one process, the difference of gradients."""
    for name, case in CASES.items():
        for batch in (32, 128):
            yield two_workers(name, case, batch)
            yield alone(name, case, batch)
        yield bounded(f"gradients against PyTorch, {name}", [difference(name, case)], 1e-5, "of the norm")


def rows(case: Case, count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, *case.shape)).astype(np.float32)
    return x, draw.integers(0, case.classes, count).astype(np.int32)


def problem(case: Case, x: np.ndarray, y: np.ndarray, batch: int, **options: Any) -> Any:
    build = partial(case.build, **options) if options else case.build
    loss = optax.softmax_cross_entropy_with_integer_labels
    return tk.problem(build, loss, train=(x, y), test=(x[:8], y[:8]), batch=batch, blocks=case.blocks)


def two_workers(name: str, case: Case, batch: int) -> Result:
    """BSP over a ring of two Dask workers against DDP over gloo."""
    x, y = rows(case, 2 * batch * (STEPS + WARM))  # a run is an epoch: nothing is evaluated before its end
    task, strategy = problem(case, x, y, batch), tk.chain(tk.bsp(), tk.all_reduce(tk.ring))
    with tempfile.TemporaryDirectory() as folder, compiled_once(Path(folder)), tk.Dask(workers=2) as on:
        meeting = str(Path(folder) / "meeting")
        with stepping(rivals.training, cores()[:2], name, x[:batch], y[:batch], meeting) as rival:

            def ours() -> float:
                until = tk.iterations(STEPS + WARM)
                run = tk.train(task, strategy, optimizer=f"sgd({rivals.RATE})", on=on, until=until, progress=False)
                return 2 * batch / per_round(run.trace)

            pairs = in_turns(ours, lambda: 2 * batch / rival(STEPS), TURNS, IDLE)
    case_name = f"training step, {name}, batch {batch}, 2 workers, against torch DDP(gloo)"
    return compared(case_name, pairs, "samples/s", case.target, less=False)


def per_round(trace: Any) -> float:
    """Seconds from the begin of one round to that of the next, in the mean over all but the first."""
    steps = trace[trace["kind"] == "compute"]
    begins = steps.groupby("clock")["began"].min().sort_index().to_numpy()
    return float((begins[-1] - begins[WARM - 1]) / (len(begins) - WARM))


@contextlib.contextmanager
def compiled_once(folder: Path) -> Iterator[None]:
    """Processes started inside keep what they compile in a folder: each turn is a run of its own."""
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(zip(names, (str(folder / "compiled"), "0"), strict=True))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def alone(name: str, case: Case, batch: int) -> Result:
    """One process: the jitted gradient and its application against a step of PyTorch."""
    x, y = rows(case, batch)
    core = cores()[:1]
    with stepping(prepared, core, name, x, y) as ours, stepping(rivals.training, core, name, x, y) as rival:
        pairs = in_turns(lambda: ours(STEPS), lambda: rival(STEPS), TURNS, IDLE)
    return compared(f"training step, {name}, batch {batch}, 1 process, against torch", pairs, "s")


def prepared(rank: int, name: str, x: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    """What a worker does at each step, without a cluster."""
    learner = Learner(problem(CASES[name], x, y, len(x)))
    applier = Applier(optax.sgd(rivals.RATE), learner.vector.trainable)
    vector, local = learner.initial()
    state = applier.init(vector)

    def step() -> None:
        nonlocal vector, state
        update = learner.gradient(vector, local, (x, y), (0, 0, 0)).update
        vector, state = applier.apply(vector, state, update)

    return step


def difference(name: str, case: Case, batch: int = 32) -> float:
    """The largest distance between gradients of a tensor, relative to the norm: ours in float32, PyTorch's in float64.

    Two gradients in float32 may differ by more: where rounding moves a value across zero, the rectifier switches.
    """
    x, y = rows(case, batch)
    options = {"dropout": 0.0} if name == "redshift CNN" else {}
    learner = Learner(problem(case, x, y, batch, **options))
    vector, local = learner.initial()
    step = learner.gradient(vector, local, (x, y), (0, 0, 0))

    def tensors(flat: np.ndarray) -> dict[str, np.ndarray]:
        params, _ = learner.vector.unpack(flat, local)
        leaves = [leaf for block in params for leaf in jax.tree.leaves(block)]
        names = [piece.name for piece in learner.layout.pieces if piece.trainable]
        return {name: np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True)}

    theirs = rivals.gradient(name, tensors(vector), x, y)
    kind = rivals.MODELS[name]
    far = []
    for key, mine in tensors(step.update).items():
        other = theirs[rivals.translated(key)]
        far.append(np.linalg.norm(kind.weights(key, mine) - other) / np.linalg.norm(other))
    return float(max(far))


if __name__ == "__main__":
    for result in results():
        print(result, result.met, flush=True)
