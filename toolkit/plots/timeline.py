"""What each worker did when."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from toolkit import metrics
from toolkit.plots.style import GREY, PHASE_COLOURS, canvas, dress, patches, several
from toolkit.run import Run


def timeline(runs: Run | Mapping[str, Run], between: tuple[float, float] | None = None, ax: Axes | None = None) -> Axes:
    """One bar per worker, cut into compute, send, apply and wait.

    The pieces are those of :func:`toolkit.metrics.timeline`.

    Parameters
    ----------
    runs : Run or Runs
        Several runs lie below each other on one time axis.
    between : (float, float) [s], optional
        Show only this window of time.
    ax : Axes, optional
        Draw here; by default on a figure of its own.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import toolkit as tk
    >>> cluster = tk.Simulator(2, step=tk.constant([1.0, 2.0]), nbytes=4e6)
    >>> run = tk.simulate(tk.chain(tk.bsp(), tk.parameter_server()), cluster, until=tk.iterations(4))
    >>> tk.plots.timeline(run).get_xlabel()
    'time [s]'
    """
    runs = several(runs)
    tables = {name: metrics.timeline(run) for name, run in runs.items()}
    workers = {name: sorted(table["worker"].unique()) for name, table in tables.items()}
    count = sum(len(of) for of in workers.values())
    ax = canvas(ax, width=8.0, height=1.4 + 0.28 * count + 0.3 * len(runs))
    top, end = 0.0, 0.0
    ticks: dict[float, str] = {}
    for name, table in tables.items():
        if len(runs) > 1:
            top += 0.9
            ax.text(0, top - 0.62, name, transform=ax.get_yaxis_transform(), fontsize=9, fontweight="bold", va="bottom")
        rows = {worker: top + row for row, worker in enumerate(workers[name])}
        for phase, colour in PHASE_COLOURS.items():
            bars = table[table["phase"] == phase]
            widths, at = (bars["ended"] - bars["began"]).to_numpy(), bars["worker"].map(rows).to_numpy()
            ax.barh(at, widths, left=bars["began"].to_numpy(), height=0.78, color=colour, linewidth=0)
        ticks |= {row: str(worker) for worker, row in rows.items()}
        top, end = top + len(rows), max(end, float(table["ended"].max()) if len(table) else 0.0)
    title = "what each worker did" + (f", {name}" if len(runs) == 1 else "")
    dress(ax, runs, title, "time [s]", "worker", grid="x", entries=patches(PHASE_COLOURS))
    shown = list(ticks.items())[:: 1 + count // 60]  # labels of more rows would overlap
    ax.set_yticks([row for row, _ in shown], [label for _, label in shown])
    ax.set_ylim(top - 0.4, -0.6)
    ax.set_xlim(*(between or (0.0, end or 1.0)))
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0, colors=GREY)
    return ax
