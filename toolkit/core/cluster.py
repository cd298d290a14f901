"""What a strategy is told at the start: who takes part, what the model looks like, which places exist."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.core.checks import native
from toolkit.core.errors import Refused
from toolkit.core.layout import Layout
from toolkit.core.messages import PlaceName, Span, Worker
from toolkit.core.records import Record, field


class Home(Record):
    """What a place is for: the span of the model vector that lives there, and its role.

    `role` is ``"worker"``, ``"server"`` or ``"stage"``; `worker` is the worker it belongs to (None: a server). A place
    that holds the `model` is read for evaluation. `beside` names the place whose host it shares by default; None gives
    it a host of its own. `stage` is its number among how many.
    """

    role: str
    span: Span
    worker: Worker | None = None
    model: bool = False
    beside: PlaceName | None = None
    stage: tuple[int, int] = (0, 1)


class Cluster(Record):
    """The description that every layer receives at `init`.

    `budget` bounds the iterations of each worker (absent: no bound); `seed` feeds every counter-based choice;
    `rows` is the number of training rows (0 without data); `homes` are the places that the layers above and below
    have declared.
    """

    workers: tuple[Worker, ...]
    layout: Layout = Layout(())
    budget: Mapping[Worker, int] = field(default_factory=dict)
    seed: int = 0
    rows: int = 0
    homes: Mapping[PlaceName, Home] = field(default_factory=dict)


def hosts(cluster: Cluster, given: Mapping[PlaceName, PlaceName] | None = None) -> dict[PlaceName, PlaceName]:
    """The host of each place: as given, else beside another place, else a host of its own."""
    given = placement(given)
    places = dict.fromkeys((*cluster.workers, *cluster.homes))
    if strange := [place for place in given if place not in places]:
        raise Refused(
            f"hosts names the places {strange} of a run that has the places {list(places)}. "
            f"A host for a place that does not exist would change nothing. Leave out what the strategy does not have."
        )

    def host(place: PlaceName) -> PlaceName:
        if place in given:
            return given[place]
        home = cluster.homes.get(place)
        return place if home is None or home.beside is None else host(home.beside)

    return {place: host(place) for place in cluster.homes}


def placement(given: Mapping[PlaceName, PlaceName] | None) -> dict[PlaceName, PlaceName]:
    """Which place is to be on which host, in plain numbers and texts; refuse anything else."""
    pairs = native([*given.items()]) if isinstance(given, Mapping) else [] if given is None else [(given, None)]
    if any(type(name) not in (int, str) for pair in pairs for name in pair):
        raise Refused(
            f"hosts={given!r} does not say which place is on which host. Both go by the number of a worker or by a "
            f"name. Give a mapping such as {{'s0': 1}}."
        )
    return dict(pairs)
