"""A run is saved whole and comes back whole; runs that cannot be compared say so."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from toolkit import folder as folders
from toolkit.core.conditions import updates
from toolkit.core.errors import Refused
from toolkit.core.messages import Done, Join, Joined
from toolkit.folder import FolderDamaged, FolderExists, whole
from toolkit.run import METRICS, RESOURCES, Run, table
from toolkit.runs import Runs, load
from toolkit.trace import Row, Trace, happened

VALUES = [(0.5, -1, 0, "loss", 2.0), (1.5, 0, 8, "loss", 0.1 + 0.2), (1.5, 0, 8, "accuracy", 0.75)]
CLUSTER = {"description": "two workers", "cpu": "some", "oversubscribed": False, "settings": {"NPROC": 1}}


def trace(workers: int = 2) -> pd.DataFrame:
    """One round in which only worker 0 is heard."""
    rows = Trace()
    for worker in range(workers):
        rows.append(Row("compute", ("compute", worker, 1), 0.0, 0.0, 1.0, worker, 1, place=worker, samples=8))
        push = ("push", worker, 1, "s0")
        rows.append(Row("send", push, 1.0, 1.0, 1.25, worker, 1, place=worker, peer="s0", nbytes=40.0))
        rows.append(happened("ready", ("ready", worker, 1), 1.25, worker=worker, clock=1, stale=worker))
    rows.append(happened("committed", ("committed", 0), 1.5, round=0))
    return rows.frame()


def run(name: str = "SSP", **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "recipe": "chain(ssp(3), parameter_server())",
        "problem": "digits(batch=8)",
        "optimizer": "sgd(0.1)",
        "cluster": CLUSTER,
        "seed": 7,
        "options": {"until": "seconds(2)"},
        "metrics": table(METRICS, VALUES),
        "resources": table(RESOURCES, [(1.0, "0", "a", 99.5, 1e8, 40.0, 80.0)]),
        "events": (Joined(0, 0.0), Done(Join(("ready", 0, 1), about=(0,)), 1.25, {"loss": 0.1 + 0.2})),
        "versions": {"jax": "0"},
        "compile_seconds": 2.0,
        "params": np.linspace(0, 1, 5, dtype=np.float32),
    }
    return Run(name, trace=trace(), **fields | changes)


def same(one: Run, two: Run) -> None:
    for name in ("trace", "metrics", "resources"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(two, name))
    for name in ("name", "recipe", "problem", "optimizer", "cluster", "seed", "options", "measured", "events"):
        assert getattr(one, name) == getattr(two, name)
    for name in ("versions", "compile_seconds", "status"):
        assert getattr(one, name) == getattr(two, name)


def test_a_run_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    before = run(measured=True, status="stopped: worker 1 was lost")
    after = load(before.save(tmp_path / "new" / "run"))
    assert isinstance(after, Run)
    same(before, after)
    np.testing.assert_array_equal(before.params, after.params, strict=True)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run"]


@pytest.mark.parametrize(
    "params",
    [None, np.arange(3.0), {}, {"file": np.ones(2), "a": {"b/c": np.zeros((2, 3)), 0: np.array(1, dtype=np.int8)}}],
    ids=["none", "vector", "empty", "nested"],
)
def test_parameters_come_back_in_their_shape(tmp_path: Path, params: Any) -> None:
    def plain(node: Any) -> Any:
        return {k: plain(v) for k, v in node.items()} if isinstance(node, dict) else (node.dtype, node.tolist())

    after = Run.load(run(params=params).save(tmp_path / "run")).params
    assert after is None if params is None else plain(after) == plain(params)


def test_parameters_that_are_no_arrays_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="object at \\['model'\\]"):
        run(params={"model": object()}).save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_equal_runs_give_equal_files(tmp_path: Path) -> None:
    one, two = run().save(tmp_path / "one"), run().save(tmp_path / "two")
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


def test_a_folder_that_exists_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("all of it")
    with pytest.raises(FolderExists, match="never overwritten"):
        run().save(tmp_path / "run")
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "thesis.txt"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        (path / "first").write_text("half")
        assert not (tmp_path / "run").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole(tmp_path / "run", half)
    assert list(tmp_path.iterdir()) == []


FILES = ("run.json", "trace.parquet", "metrics.parquet", "events.parquet", "resources.parquet", "params.npz")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["remove", "cut", "flip"])
def test_damage_is_named(tmp_path: Path, name: str, harm: str) -> None:
    folder = run().save(tmp_path / "run")
    assert {path.name for path in folder.iterdir()} == set(FILES)
    file, data = folder / name, (folder / name).read_bytes()
    match harm:
        case "remove":
            file.unlink()
        case "cut":
            file.write_bytes(data[: len(data) // 2])
        case "flip":
            middle = data.index(b'"seed": 7') + 8 if name == "run.json" else len(data) // 2
            file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(FolderDamaged, match=name):
        load(folder)


def test_a_folder_of_something_else_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps([1, 2]))
    with pytest.raises(FolderDamaged, match=r"run\.json"):
        load(tmp_path)
    with pytest.raises(FolderDamaged, match=r"has no run\.json"):
        load(tmp_path / "nowhere")


SAVED = {
    "of a number": 3,
    "of nothing": None,
    "with NUL": "a\0b",
    "too long": "x" * 300,
    "in a file": "file/run",
    "in the kernel": "/proc/run",
}


@pytest.mark.parametrize("path", SAVED.values(), ids=SAVED)
def test_what_cannot_be_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    for save in run().save, Runs({"one": run()}).save:
        with pytest.raises(Refused, match=r"cannot be the path|no folder can be made"):
            save(path)
    with pytest.raises(Refused, match=r"cannot be the path|has no run\.json"):
        load(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_and_a_folder_above_are_refused_and_a_long_name_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in tmp_path / "file", tmp_path / "new" / "..":
        with pytest.raises(FolderExists):
            run().save(path)
    with pytest.raises(FolderDamaged, match=r"has no run\.json"):
        load(tmp_path / "file")
    same(run(), load(run().save(tmp_path / ("x" * 250))))


def sealed(folder: Path, **changes: Any) -> None:
    """Change a record, or a file of a folder, such that all checksums agree again."""
    body = json.loads((folder / "run.json").read_text())
    del body["sha256"]
    body |= {name: value for name, value in changes.items() if name in body and name != "run"}
    fields = {**body["run"], **changes.get("run", {})}
    body["run"] = {name: value for name, value in fields.items() if value is not ...}
    body["files"] = {name: folders._digest((folder / name).read_bytes()) for name in body["files"]}
    (folder / "run.json").write_text(json.dumps(body | {"sha256": folders._digest(folders._canonical(body))}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"run": {"more": 1}}, "whose more"),
        ({"run": {"recipe": ...}}, "whose recipe"),
        ({"run": {"recipe": 3, "seed": "a"}}, "whose recipe, seed"),
        ({"run": {"options": []}}, "whose options"),
        ({"format": 99}, "of format 99"),
    ],
)
def test_a_record_of_something_else_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    folder = run().save(tmp_path / "run")
    sealed(folder)
    same(run(), load(folder))
    sealed(folder, **changes)
    with pytest.raises(FolderDamaged, match=says):
        load(folder)


@pytest.mark.parametrize("name", ["trace.parquet", "events.parquet", "metrics.parquet", "params.npz"])
@pytest.mark.parametrize("content", ["junk", "other columns"])
def test_junk_with_the_right_checksum_is_refused(tmp_path: Path, name: str, content: str) -> None:
    folder = run().save(tmp_path / "run")
    (folder / name).write_bytes(b"junk")
    if content != "junk":
        pd.DataFrame({"seq": [1, 2]}).to_parquet(folder / name)
    sealed(folder)
    with pytest.raises(FolderDamaged, match=name):
        load(folder)


def test_events_that_are_none_are_refused(tmp_path: Path) -> None:
    folder = run().save(tmp_path / "run")
    events = pd.read_parquet(folder / "events.parquet").assign(key='a:"')
    events.to_parquet(folder / "events.parquet")
    sealed(folder)
    with pytest.raises(FolderDamaged, match="events"):
        load(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "[]", '{"run": {}, "files": 3, "sha256": ""}', None])
def test_a_record_that_is_none_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is None:
        (tmp_path / "run.json").mkdir()
    else:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(FolderDamaged, match=r"run\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    "text", ['{"a": 3}', '{"a": null}', '{"a": "../a"}', "[]", "[" * 100_000, '"ab"', '{"a": "b"}']
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs.json").write_text(text)
    with pytest.raises(FolderDamaged, match=r"runs?\.json"):
        load(tmp_path)


@pytest.mark.parametrize("runs", [None, 3, "run", [run()], {3: run()}, {"a": 3}, {"a": run(), None: run()}])
def test_runs_are_a_mapping_of_text_to_run(runs: Any) -> None:
    with pytest.raises(Refused, match="Give a mapping of text to Run"):
        Runs(runs)
    with pytest.raises(Refused, match="Give a mapping of text to Run"):
        Runs({"one": run()}) | runs


def test_a_name_is_text(tmp_path: Path) -> None:
    assert load(run(3).save(tmp_path / "run")).name == "3"  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["x", 3, ("loss",), ("loss", "a"), ("loss", None), (3, 0.1), updates(3), [], 0])
def test_a_target_is_a_value_of_a_metric(target: Any) -> None:
    for each in heard("one"), Runs({"one": heard("one")}):
        with pytest.raises(Refused):
            each.summary(target=target)


def test_the_summary_of_a_run() -> None:
    with pytest.warns(UserWarning, match="worker 1 was merged"):
        row = run().summary(target=("accuracy", 0.7)).iloc[0].to_dict()
    assert row["strategy"] == "SSP" and row["seconds"] == 1.5
    assert (row["updates"], row["samples"], row["dropped"], row["unheard"]) == (1, 8, 0, "1")
    assert (row["loss"], row["accuracy"], row["to_target"]) == (0.1 + 0.2, 0.75, 1.5)
    assert (row["stale_mean"], row["stale_max"], row["sent"], row["waiting"]) == (0.0, 0.0, 80.0, 0.0)
    assert (row["compile_seconds"], row["measured"], row["status"]) == (2.0, False, "finished")
    assert np.isnan(run().facts(SimpleNamespace(metric="loss", value=0.1))["to_target"])


def test_runs_of_one_kind_are_comparable() -> None:
    runs = Runs({"one": heard("x"), "two": heard("y", recipe="chain(bsp(), all_reduce(ring))")})
    assert runs["one"].name == "one"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = runs.summary()
    assert frame["strategy"].tolist() == ["one", "two"]
    assert frame["comparable"].tolist() == ["yes", "yes"]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"measured": True}, "measured: True, not False"),
        ({"problem": "digits(batch=16)"}, r"problem: digits\(batch=16\), not digits\(batch=8\)"),
        ({"cluster": CLUSTER | {"settings": {"NPROC": 2}}}, "NPROC: 2, not 1"),
        ({"cluster": CLUSTER | {"oversubscribed": True}}, "oversubscribed: True, not False"),
        ({"options": {"until": "seconds(3)"}}, "until"),
    ],
)
def test_what_differs_beside_the_strategy_is_flagged(change: dict[str, Any], note: str) -> None:
    with pytest.warns(UserWarning, match=note):
        frame = Runs({"one": heard("one"), "two": heard("two", **change)}).summary()
    assert frame["comparable"].str.contains(note, regex=True).tolist() == [False, True]


def heard(name: str, **changes: Any) -> Run:
    return replace(run(name, **changes), trace=trace(workers=1))


def test_runs_come_back_in_order_whatever_their_names(tmp_path: Path) -> None:
    names = ["SSP, top 1%", "a/b", "a b", "ASP"]
    before = Runs({name: run(name) for name in names})
    after = load(before.save(tmp_path / "runs"))
    assert isinstance(after, Runs)
    assert list(after) == names
    for name in names:
        same(before[name], after[name])
    with pytest.raises(FolderExists):
        before.save(tmp_path / "runs")
    (tmp_path / "runs" / "runs.json").write_text("{")
    with pytest.raises(FolderDamaged, match=r"runs\.json"):
        load(tmp_path / "runs")


def test_one_line_about_a_run() -> None:
    assert repr(run()) == "Run('SSP', chain(ssp(3), parameter_server()), 1.5 s virtual time, 1 updates, finished)"
    assert "\n" not in run()._repr_html_()
    page = Runs({"<b>": heard("<b>")})._repr_html_()
    assert "<table" in page and "&lt;b&gt;" in page


def test_replay_is_the_work_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_replay", None)
        with pytest.raises(TypeError, match="replayed"):
            run().replay()
        patch.setattr(Run, "_replay", lambda self, **options: (self.name, options))
        assert run().replay(round=3) == ("SSP", {"round": 3})


def test_tables_are_given_their_types() -> None:
    loose = pd.DataFrame({"value": [1], "name": ["loss"], "time": [2], "round": [0.0], "samples": [3.0], "more": [0]})
    metrics = run(metrics=loose).metrics
    assert {name: metrics[name].dtype == dtype for name, dtype in METRICS.items()} == dict.fromkeys(METRICS, True)
    assert list(metrics.columns) == list(METRICS)
