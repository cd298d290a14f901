"""Figures show what the metrics say, label their units, and keep one colour per strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from toolkit import metrics
from toolkit.plots import style
from toolkit.plots.loss import loss
from toolkit.plots.predicted import predicted
from toolkit.plots.save import save
from toolkit.plots.staleness import staleness
from toolkit.plots.style import PHASE_COLOURS, POLICY_COLOURS, byte_unit, colours
from toolkit.plots.timeline import timeline
from toolkit.plots.traffic import traffic
from toolkit.plots.waiting import waiting
from toolkit.run import METRICS, Run, table
from toolkit.runs import Runs
from toolkit.trace import Row, Trace, happened

PLOTS: list[Callable[..., Axes]] = [loss, timeline, staleness, waiting, traffic]


def bsp(name: str, speeds: tuple[float, ...], measured: bool = False, rounds: int = 4) -> Run:
    """Workers of these step times meet after each step, at one server."""
    trace, now, values = Trace(), 0.0, [(0.0, -1, 0, "loss", 2.0)]
    for number in range(rounds):
        for worker, step in enumerate(speeds):
            key, end = ("push", worker, number + 1, "s0"), now + step + 0.25
            compute = ("compute", worker, number + 1)
            trace.append(Row("compute", compute, now, now, now + step, worker, number + 1, place=worker, samples=8))
            trace.append(Row("send", key, now + step, now + step, end, worker, number + 1, None, worker, "s0", 2e6))
            trace.append(
                happened("ready", ("ready", worker, number + 1), end, worker=worker, clock=number + 1, stale=0)
            )
        now += max(speeds) + 0.5
        trace.append(Row("apply", ("apply", number, "s0"), now - 0.25, now - 0.25, now, round=number, place="s0"))
        trace.append(happened("committed", ("committed", *range(len(speeds))), now, round=number))
        values.append((now, number, 8 * len(speeds) * (number + 1), "loss", 2.0 / (number + 2)))
    return Run(name, "chain(bsp(), parameter_server())", trace.frame(), measured, metrics=table(METRICS, values))


@pytest.fixture
def runs() -> Runs:
    return Runs({"even": bsp("even", (1.0, 1.0)), "uneven": bsp("uneven", (1.0, 2.0))})


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_takes_a_run_or_runs_and_draws_where_it_is_told(runs: Runs, plot: Callable[..., Axes]) -> None:
    ax = Figure().add_subplot()
    assert plot(runs, ax=ax) is ax
    alone = plot(runs["even"])
    for axes in (ax, alone):
        assert axes.get_xlabel() and axes.get_ylabel() and axes.get_title(loc="left")
        assert "virtual time" in [text.get_text() for text in axes.texts]
    assert alone.get_legend() is None or plot is timeline


def test_no_plot_touches_the_state_of_pyplot(runs: Runs) -> None:
    from matplotlib import pyplot

    settings = dict(mpl.rcParams)
    for plot in PLOTS:
        plot(runs)
    assert pyplot.get_fignums() == []
    assert dict(mpl.rcParams) == settings


@pytest.mark.parametrize(
    ("plot", "labels"),
    [
        (loss, ("time [s]", "loss")),
        (timeline, ("time [s]", "worker")),
        (waiting, ("worker", "waiting [s]")),
        (traffic, ("worker 0, 1, … or shard s0, s1, … of a parameter server", "received ← [MB] → sent")),
    ],
)
def test_units_are_on_the_axes(runs: Runs, plot: Callable[..., Axes], labels: tuple[str, str]) -> None:
    ax = plot(runs)
    assert (ax.get_xlabel(), ax.get_ylabel()) == labels


@pytest.mark.parametrize(
    ("against", "last"), [("seconds", (6.0, 10.0)), ("updates", (4.0, 4.0)), ("samples", (64.0, 64.0))]
)
def test_a_metric_against_its_cost(runs: Runs, against: str, last: tuple[float, float]) -> None:
    lines = [line for line in loss(runs, against=against).lines if len(line.get_xdata())]  # type: ignore[arg-type]
    assert tuple(np.asarray(line.get_xdata())[-1] for line in lines) == last
    assert [np.asarray(line.get_ydata())[0] for line in lines] == [2.0, 2.0]


def test_the_same_strategy_has_the_same_colour_in_every_figure(runs: Runs) -> None:
    line = {name: to_rgb(loss(Runs({name: runs[name]})).lines[0].get_color()) for name in runs}
    swapped = Runs({name: runs[name] for name in reversed(list(runs))})
    for plot in (loss, waiting, traffic, staleness):
        legend = plot(swapped).get_legend()
        assert legend is not None
        shown = {t.get_text(): p.get_facecolor()[:3] for t, p in zip(legend.texts, legend.get_patches(), strict=True)}
        assert shown == line


@pytest.mark.parametrize("recipe", ["chain(ssp(3), parameter_server())", "leash(2)"])
def test_thirty_strategies_of_one_policy_have_thirty_colours(recipe: str) -> None:
    runs = {str(i): Run(str(i), recipe, Trace().frame()) for i in range(30)}
    assert len(set(colours(runs).values())) == 30
    assert colours(dict(reversed(runs.items()))) == colours(runs)


def test_a_policy_has_its_colour_whatever_was_drawn_before(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = {
        "mine": "chain(leash(2), parameter_server())",
        "ASP": "chain(asp(), parameter_server(2))",
        "ring": "chain(bsp(), all_reduce(ring))",
    }
    runs = {name: Run(name, recipe, Trace().frame()) for name, recipe in recipes.items()}
    for order in (list(runs), list(reversed(runs))):
        monkeypatch.setattr(style, "_given", {})
        given = colours({name: runs[name] for name in order})
        assert (given["ASP"], given["ring"]) == (to_rgb(POLICY_COLOURS["asp"]), to_rgb(POLICY_COLOURS["bsp"]))


def written(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def curve(name: str, *values: float) -> Run:
    rows = [(float(at), at - 1, 8 * at, "accuracy", value) for at, value in enumerate(values)]
    return Run(name, "chain(asp(), gossip(ring))", Trace().frame(), metrics=table(METRICS, rows))


def test_a_first_value_that_would_squeeze_the_rest_is_left_out_and_named() -> None:
    ax = loss(Runs({"a": curve("a", 0.1, 0.7, 0.8), "b": curve("b", 0.1, 0.75, 0.85)}), metric="accuracy")
    assert ax.get_ylim() == pytest.approx((0.6925, 0.8575))
    assert "begins at 0.1 ↓" in written(ax)
    assert "begins at 3 to 4 ↑" in written(
        loss(Runs({"a": curve("a", 4, 1, 0.9), "b": curve("b", 3, 1, 0.8)}), "accuracy")
    )


@pytest.mark.parametrize("values", [(0.1, 0.2, 0.9), (0.1, 0.9), (0.1,), (0.1, 0.9, 0.9), (0.1, 0.9, float("nan"))])
def test_where_nothing_is_squeezed_everything_is_shown(values: tuple[float, ...]) -> None:
    ax = loss(curve("a", *values), metric="accuracy")
    assert ax.get_ylim()[0] < 0.1 and written(ax) == ["virtual time"]


def test_updates_too_rare_to_be_seen_do_not_widen_the_figure() -> None:
    trace = Trace()
    for clock in range(1, 402):
        old = 9 if clock == 400 else clock % 2
        trace.append(happened("ready", ("ready", 0, clock), float(clock), worker=0, clock=clock, stale=old))
        trace.append(happened("committed", ("committed", 0), float(clock), round=clock))
    ax = staleness(Run("rare", "chain(asp(), parameter_server())", trace.frame()))
    assert ax.get_xlim() == (-0.7, 1.7) and "older, up to 9: at most 0.2% →" in written(ax)


def test_traffic_without_bytes_says_so() -> None:
    run = bsp("silent", (1.0, 1.0))
    for trace in (run.trace.assign(nbytes=0.0), run.trace[run.trace["kind"] != "send"]):
        ax = traffic(Run("silent", run.recipe, trace))
        assert "no bytes" in written(ax) and ax.get_yticks().tolist() == [0.0]
    assert "no bytes" not in written(traffic(run))


def test_the_heights_of_bars_are_the_waits(runs: Runs) -> None:
    (bars,) = waiting(runs["uneven"]).containers
    assert [float(bar.get_height()) for bar in bars] == metrics.waiting(runs["uneven"]).tolist() == [3.0, 0.0]


def test_the_shares_of_each_strategy_add_up(runs: Runs) -> None:
    assert sum(float(bar.get_height()) for bar in staleness(runs).patches) == pytest.approx(2.0)


def test_the_bars_of_a_timeline_are_its_phases(runs: Runs) -> None:
    ax = timeline(runs["uneven"], between=(0.0, 5.0))
    spent = metrics.phases(runs["uneven"]).sum()
    for phase, colour in PHASE_COLOURS.items():
        bars = [bar for bar in ax.patches if bar.get_facecolor()[:3] == to_rgb(colour)]
        assert sum(float(bar.get_width()) for bar in bars) == pytest.approx(spent[phase])
    assert ax.get_xlim() == (0.0, 5.0)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "1"]


def test_what_was_foretold_exactly_lies_on_the_line(runs: Runs) -> None:
    real = Runs({name: bsp(name, (1.0, 2.0) if name == "uneven" else (1.0, 1.0), measured=True) for name in runs})
    ax = predicted(real, runs)
    points = np.concatenate([np.asarray(dots.get_offsets()) for dots in ax.collections])
    np.testing.assert_allclose(points[:, 0], points[:, 1])
    assert "virtual time" in ax.get_xlabel() and "measured" in ax.get_ylabel()
    assert len({dots.get_paths()[0].vertices.tobytes() for dots in ax.collections}) == 2, "one marker hides the other"
    assert all(dots.get_facecolor().size == 0 for dots in ax.collections)
    with pytest.raises(ValueError, match="paired"):
        predicted(real, bsp("other", (1.0,)))


def test_the_bar_of_a_tolerance_meets_the_line_if_the_prediction_is_within(runs: Runs) -> None:
    name = "uneven"
    real = Runs({name: bsp(name, (1.0, 2.5), measured=True)})
    foretold, found = (each[name].facts()["seconds"] for each in (runs, real))
    ax = predicted(real, runs, "seconds", tolerance={name: 0.5, "other": 9.0})
    (bar,) = [lines for lines in ax.collections if isinstance(lines, LineCollection)]
    np.testing.assert_allclose(bar.get_segments(), [[(foretold, found - 0.5), (foretold, found + 0.5)]])
    assert ax.get_ylim()[1] > found + 0.5
    assert any("tolerance" in text.get_text() for text in ax.texts)


def test_what_cannot_be_drawn_is_refused(runs: Runs) -> None:
    with pytest.raises(ValueError, match="measured loss"):
        loss(runs, metric="accuracy")
    with pytest.raises(ValueError, match="seconds, updates, samples"):
        loss(runs, against="euros")
    with pytest.raises(ValueError, match="No run"):
        waiting(Runs({}))


def test_equal_figures_give_equal_files(runs: Runs, tmp_path: Path) -> None:
    for name in ("one", "two"):
        paths = save(loss(runs), tmp_path / name, "loss")
        assert [path.name for path in paths] == ["loss.png", "loss.pdf"]
    for file in ("loss.png", "loss.pdf"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_figure_shows_itself_as_the_last_line_of_a_cell(runs: Runs) -> None:
    assert loss(runs)._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


@pytest.mark.parametrize(("size", "unit"), [(0.0, "byte"), (999.0, "byte"), (1e3, "kB"), (5e8, "MB"), (2e12, "GB")])
def test_the_unit_of_bytes(size: float, unit: str) -> None:
    assert byte_unit(size)[1] == unit
