"""A metric against seconds, updates or samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from toolkit import metrics
from toolkit.plots.style import GREY, by_strategy, canvas, dress, several, together
from toolkit.run import Run

AGAINST = {"seconds": "time [s]", "updates": "updates of the model", "samples": "samples [rows]"}


def loss(runs: Run | Mapping[str, Run], metric: str = "loss", against: str = "seconds", ax: Axes | None = None) -> Axes:
    """A metric of the model over the course of each run, one line per strategy.

    Parameters
    ----------
    runs : Run or Runs
    metric : str
        Name of a measured metric, such as ``"loss"`` or ``"accuracy"``.
    against : {"seconds", "updates", "samples"}
        The cost on the horizontal axis: time [s], updates of the model (merges), or rows they were computed from.
    ax : Axes, optional
        Draw here; by default on a figure of its own.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import toolkit as tk
    >>> run = tk.train(tk.problems.quadratic(), tk.chain(tk.asp(), tk.parameter_server()), optimizer="sgd(0.1)",
    ...                on=tk.Simulator(2), until=tk.updates(4), progress=False)
    >>> ax = tk.plots.loss(run)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('time [s]', 'loss')
    """
    if against not in AGAINST:
        raise ValueError(
            f"{metric} against {against!r} was asked for. The cost of a run is counted in {', '.join(AGAINST)}. "
            f"Choose one of these."
        )
    runs, ax = several(runs), canvas(ax)
    data = together(runs, lambda run: course(run, metric))
    if data.empty:
        known = sorted({name for run in runs.values() for name in run.metrics["name"]}) or ["nothing"]
        raise ValueError(
            f"A plot of {metric!r} was asked for, and the runs measured {', '.join(known)}. What was not measured "
            f"cannot be drawn. Choose another metric, or train with an evaluation (a timing alone has none)."
        )
    marker = "o" if data.groupby("strategy").size().max() <= 25 else None
    sns.lineplot(
        data, x=against, y="value", **by_strategy(runs), estimator=None, marker=marker, markersize=4,
        markeredgewidth=0, ax=ax,
    )  # fmt: skip
    show_the_rest(ax)
    return dress(ax, runs, f"{metric} against {against}", AGAINST[against], metric)


def show_the_rest(ax: Axes) -> None:
    """Leave first values, before training, out of the range if the rest would get less than half of it; say so."""
    lines = [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]
    first, rest = (np.concatenate([line[part] for line in lines]) for part in (slice(0, 1), slice(1, None)))
    first, rest = first[np.isfinite(first)], rest[np.isfinite(rest)]
    height = np.ptp(rest) if len(rest) else 0.0
    if not 0 < 2 * height < np.ptp([*first, *rest]):
        return
    low, high = rest.min() - 0.05 * height, rest.max() + 0.05 * height
    ax.set_ylim(low, high)
    for outside, arrow, y, va in ((first[first < low], "↓", 0.03, "bottom"), (first[first > high], "↑", 0.97, "top")):
        if len(outside):
            values = " to ".join(sorted({f"{outside.min():.3g}", f"{outside.max():.3g}"}, key=float))
            text = f"begins at {values} {arrow}"
            ax.text(0.99, y, text, transform=ax.transAxes, ha="right", va=va, fontsize=9, color=GREY)


def course(run: Run, metric: str) -> pd.DataFrame:
    """The values of a metric in one run: `seconds`, `samples`, `value`, `updates`."""
    values = run.metrics[run.metrics["name"] == metric].sort_values("time", kind="stable")
    rounds = metrics.staleness(run)["round"].dropna().astype("int64").sort_values()
    updates = rounds.searchsorted(values["round"].to_numpy(), side="right")
    columns = {"seconds": values["time"], "samples": values["samples"], "value": values["value"]}
    return pd.DataFrame(columns).assign(updates=updates)
