"""The model as a whole, from what several places hold of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolkit.core.cluster import Home
from toolkit.core.messages import PlaceName
from toolkit.work.coding import Array, Value
from toolkit.work.merges import mean

if TYPE_CHECKING:
    from toolkit.place import Places


def assemble(places: Places, values: Mapping[PlaceName, Value]) -> tuple[Array, Array]:
    """The model vector [P] and local state [S] that some places hold together.

    Shards are put side by side; replicas are averaged, and equal ones stay equal; local states are averaged by the
    rows behind them.
    """
    vector, local = (part.copy() for part in places.start)
    one = Home("worker", places.learner.layout.whole, -1, True)
    homes = {name: places.home(name) if name != -1 else one for name in values}
    holders = [name for name, home in homes.items() if home.model]
    for span in {homes[name].span for name in holders}:
        vector[slice(*span)] = mean([values[name][0] for name in holders if homes[name].span == span])
    workers = {name: home for name, home in homes.items() if home.role != "server"} if local.size else {}
    for span in {home.span for home in workers.values()}:
        same = [name for name, home in workers.items() if home.span == span]
        where = slice(*places.stage(span).local) if workers[same[0]].role == "stage" else slice(None)
        local[where] = mean([values[name][1] for name in same], [float(values[name][2][0]) for name in same])
    return vector, local
