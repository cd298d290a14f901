"""Every comparison, side by side: python -m benchmarks [MODULE ...]."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import seaborn as sns
from matplotlib.figure import Figure

from benchmarks.measuring import Result
from toolkit.runtime.settings import describe, versions

MODULES = (
    "all_reduce",
    "step_overhead",
    "training_step",
    "servers",
    "overlap",
    "control_plane",
    "simulator",
)
RESULTS = Path(__file__).parent / "results"
COLUMNS = ["case", "ours", "rival", "unit", "ratio", "spread", "target", "met"]


def main(*names: str) -> None:
    """Print each row as it is known; write the table, a figure and the conditions."""
    rows: list[Result] = []
    before = conditions()
    for name in names or MODULES:
        for result in importlib.import_module(f"benchmarks.{name}").results():
            rows.append(result)
            print(line(result), flush=True)
    table = pd.DataFrame([{**vars(row), "met": row.met} for row in rows])[COLUMNS]
    RESULTS.mkdir(exist_ok=True)
    table.to_csv(RESULTS / "bench.csv", index=False, float_format="%.6g")
    (RESULTS / "conditions.json").write_text(json.dumps({"before": before, "after": conditions()}, indent=1) + "\n")
    picture(table).savefig(RESULTS / "bench.png", dpi=110)
    missed = table[table["met"] == False]["case"].tolist()  # noqa: E712, for None is neither
    print(f"{len(table)} cases, {len(missed)} below their targets{': ' + '; '.join(missed) if missed else ''}")


def line(result: Result) -> str:
    """A row in words."""
    wanted = "" if result.target is None else f"  target {result.target:.2f}: {'met' if result.met else 'MISSED'}"
    figures = f"{result.ours:10.4g} against {result.rival:10.4g} {result.unit:10s}"
    return f"{result.case:80s} {figures} ratio {result.ratio:6.2f} +- {result.spread / 2:.2f}{wanted}"


def conditions() -> dict[str, object]:
    """The machine and its software, and how busy it was with other things."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "load": psutil.getloadavg()[0],
        "memory": psutil.virtual_memory().total,
        **{name: describe()[name] for name in ("cpu", "cores", "affinity")},
        **versions(),
    }


def picture(table: pd.DataFrame) -> Figure:
    """The ratio of each case on a logarithmic axis, with its target."""
    figure = Figure(figsize=(11, 1.2 + 0.24 * len(table)), layout="constrained")
    axes = figure.subplots()
    state = table["met"].map({True: "target met", False: "below its target"}).fillna("no target")
    colours = {"target met": "#029e73", "below its target": "#d55e00", "no target": "#949494"}
    sns.scatterplot(table, x="ratio", y="case", hue=state, palette=colours, ax=axes, s=45, zorder=3)
    axes.errorbar(table["ratio"], table["case"], xerr=table["spread"] / 2, fmt="none", ecolor="0.6", zorder=2)
    axes.scatter(table["target"], table["case"], marker="|", color="black", s=90, label="target", zorder=4)
    axes.axvline(1.0, color="0.8", zorder=1)
    axes.set(xscale="log", xlabel="how many times better than the rival or the bound", ylabel="")
    axes.legend(loc="lower right", frameon=False)
    return figure


if __name__ == "__main__":
    main(*sys.argv[1:])
