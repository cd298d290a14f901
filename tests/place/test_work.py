"""Rewrites that change the work of a worker, and compiling all of it ahead."""

from __future__ import annotations

import numpy as np
import pytest

import toolkit as tk
from toolkit.core.messages import Compute


def test_forward_only_learns_nothing_and_tells_the_loss(perform):
    for more in ("", ", pipeline(2, 2)"):
        problem = tk.problems.digits(batch=8)
        run = perform(problem, f"chain(bsp(), parameter_server(){more}, forward_only())", 2, until=tk.iterations(3))
        np.testing.assert_array_equal(run.model(), run.places.start[0])
        losses = [e.facts["loss"] for e in run.drive.log if getattr(e, "facts", None) and e.task.key[0] == "ready"]
        assert losses
        assert all(1.5 < loss < 4 for loss in losses)


def test_adacomm_communicates_more_as_the_loss_falls(perform):
    run = perform(
        tk.problems.quadratic(dim=4, noise=0.0, rows=4096, batch=4),
        "chain(bsp(), all_reduce(ring), local_steps(adacomm(8)))",
        until=tk.updates(20),
        evaluate=tk.updates(1),
        optimizer="sgd(0.1)",
    )
    steps = [task.steps for task in run.tasks(Compute)]
    assert steps[0] == 8
    assert steps[-1] < 8
    assert sorted(steps, reverse=True) == steps


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("chain(bsp(), all_reduce(ring))", {}),
        ("chain(asp(), parameter_server(2), local_steps(2))", {"correction": tk.elastic(0.5)}),
        ("chain(asp(), parameter_server(2))", {"correction": tk.delay_compensation()}),
        ("chain(bsp(), parameter_server(), pipeline(2, 3))", {}),
        ("chain(bsp(), all_reduce(ring), pipeline(2, 3), forward_only())", {}),
        ("chain(bsp(), all_reduce(ring), forward_only())", {}),
    ],
)
def test_everything_is_compiled_before_the_run(perform, strategy, options):
    """No function is traced for a new shape once the places are warm (but evaluation, outside of the timed lanes)."""
    counts = {}

    def watch(places):
        places.compile()
        places.learner.compile((), {256, 360 - 256})
        counts["before"] = traces(places)
        return places

    run = perform(
        tk.problems.digits(batch=32),
        strategy,
        3,
        until=tk.epochs(1),
        watch=watch,
        **options,
        cluster={"step": tk.constant([1, 1.1, 1.2])},
    )
    assert traces(run.places) == counts["before"]
    assert any(counts["before"].values())


def traces(places) -> dict[str, int]:
    """How many shapes each compiled function has been traced for."""
    learner = places.learner
    functions = {"gradient": learner._gradient, "loss": learner._loss, "drift": learner._drift}
    for key, applier in places._appliers.items():
        functions[f"{key} step"] = applier._step
    for span, stage in places._stages.items():
        functions |= {f"{span} out": stage._output, f"{span} back": stage._pull, f"{span} score": stage._score}
    functions["correct"] = places.correct
    return {name: function._cache_size() for name, function in functions.items()}
