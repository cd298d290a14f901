"""The maker of exchanges: iterations and merges, named and counted, from two plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from immutables import Map

from toolkit.core.checks import function
from toolkit.core.cluster import Cluster
from toolkit.core.messages import (
    Action,
    Cancel,
    Commit,
    Committed,
    Done,
    Finished,
    Join,
    Joined,
    Left,
    PlaceName,
    Ready,
    Release,
    Send,
    Task,
    Worker,
)
from toolkit.core.records import replace
from toolkit.core.strategy import Homes, Message, Strategy, keys, nowhere
from toolkit.exchanges.rounds import Merge, Rounds

Begin: TypeAlias = Callable[[Cluster, Worker, int], Sequence[Task]]
Plan: TypeAlias = Callable[[Cluster, Merge], Sequence[Task]]
Needs: TypeAlias = Callable[[Cluster, Merge], Sequence[Worker]]


def nobody(cluster: Cluster, merge: Merge) -> Sequence[Worker]:
    """The needs of a merge that can run beside any other."""
    return ()


def exchange(
    begin: Begin,
    merge: Plan,
    places: Callable[[Cluster, Homes], Homes] = nowhere,
    repair: Plan | None = None,
    needs: Needs = nobody,
) -> Strategy:
    """Build an exchange from plans.

    Parameters
    ----------
    begin : (Cluster, worker, clock) -> tasks
        One iteration. The update is ready once all of them are done.
    merge : (Cluster, Merge) -> tasks
        Takes the updates of a group into the model. It is committed once all of them are done.
    places : (Cluster, homes) -> homes
        The places it needs.
    repair : (Cluster, Merge) -> tasks, optional
        Without it, a merge goes on when a member leaves (its update has arrived at a server). With it, such a merge is
        cancelled at the survivors; `repair` plans it anew over them, under a new number, knowing in ``merge.applied``
        which have it already. A worker that joins then receives a replica.
    needs : (Cluster, Merge) -> workers
        Whom the merge needs for itself: it is held while another merge that needs one of them is under way.

    Examples
    --------
    >>> import toolkit as tk
    >>> tk.exchange(lambda cluster, w, c: [], lambda cluster, merge: []).kind
    'exchange'
    """
    function("begin", begin, "cluster", "worker", "clock")
    function("places", places, "cluster", "homes")
    for name, plan in (("merge", merge), ("repair", repair or merge), ("needs", needs)):
        function(name, plan, "cluster", "merge")

    def step(rounds: Rounds, message: Message) -> tuple[Rounds, Sequence[Message]]:
        if isinstance(message, (Joined, Left, Done)):
            rounds = replace(rounds, time=message.time)
        match message:
            case Joined(worker):
                late = repair is not None and rounds.issued > 0
                guests = rounds.guests.set(worker, worker) if late else rounds.guests
                return replace(rounds, live=rounds.live.set(worker, True), guests=guests), ()
            case Left(worker) if worker in rounds.live:
                guests = rounds.guests.delete(worker) if worker in rounds.guests else rounds.guests
                rounds = replace(rounds, live=rounds.live.delete(worker), guests=guests)
                rounds, cancels = _cancel(rounds, needs, worker) if repair else (rounds, ())
                rounds, hellos = _welcome(rounds, begin, [w for w, source in guests.items() if source == worker])
                return rounds, (message, *cancels, *hellos)
            case Done(Join(("welcomed", int(worker), source))) if rounds.guests.get(worker) == source:
                rounds, tasks = _begin(replace(rounds, guests=rounds.guests.delete(worker)), begin, [worker])
                return rounds, (message, *tasks)
            case Release(workers):
                return _release(rounds, begin, workers)
            case Done(Join(("ready", int(worker), _)), time, facts) if worker in rounds.live:
                rounds = replace(rounds, rows=rounds.rows.set(worker, facts.get("samples", 1)))
                return rounds, (message, Ready(worker, time, rounds.stale(worker)))
            case Commit(group):
                return _commit(replace(rounds, held=(*rounds.held, group)), merge, needs)
            case Done(Join(("merged", int(number))), time) if number in rounds.flight:
                rounds, replies = _merged(rounds, message, number, time)
                rounds, more = _commit(rounds, merge, needs)
                return rounds, (*replies, *more)
            case Done(Join(("cancelled", int(number), _)), _, facts) if rounds.cancelled.get(number, ()) is None:
                applied = tuple(facts.get("applied", ()))
                rounds = replace(rounds, cancelled=rounds.cancelled.set(number, applied))
                rounds, replies = _repairs(rounds, merge, repair or merge, needs)
                return rounds, (message, *replies)
        return rounds, ((message,) if isinstance(message, Action) else ())

    return Strategy(Rounds, step, "exchange", places)


def _release(rounds: Rounds, begin: Begin, workers: frozenset[Worker]) -> tuple[Rounds, Sequence[Message]]:
    starting, replies = [], list[Message]()
    for worker in sorted(w for w in workers if w in rounds.live and w not in rounds.finished):
        if rounds.exhausted(worker):  # its last update was dropped
            rounds = replace(rounds, finished=rounds.finished.set(worker, True))
            replies.append(Finished(worker, rounds.time))
        else:
            starting.append(worker)
    rounds, hellos = _welcome(rounds, begin, [w for w in starting if w in rounds.guests])
    rounds, tasks = _begin(rounds, begin, [w for w in starting if w not in rounds.guests])
    return rounds, (*replies, *hellos, *tasks)


def _begin(rounds: Rounds, begin: Begin, workers: Sequence[Worker]) -> tuple[Rounds, Sequence[Message]]:
    rounds, replies = rounds.start(workers), list[Message]()
    for worker in workers:
        tasks = begin(rounds.cluster, worker, rounds.clock[worker])
        ready = Join(("ready", worker, rounds.clock[worker]), about=(worker,), after=keys(tasks))
        replies.extend((*tasks, ready))
    return rounds, replies


def _welcome(rounds: Rounds, begin: Begin, newcomers: Sequence[Worker]) -> tuple[Rounds, Sequence[Message]]:
    """Send newcomers a replica of the model, after which they begin; without anyone to ask they begin at once."""
    if not newcomers:
        return rounds, ()
    hosts = (worker for worker in rounds.clock if worker in rounds.live and worker not in rounds.guests)
    if (source := min(hosts, default=None)) is None:
        guests = Map({w: s for w, s in rounds.guests.items() if w not in newcomers})
        return _begin(replace(rounds, guests=guests), begin, newcomers)
    replies = list[Message]()
    for worker in newcomers:
        hello = Send(("welcome", worker, source), source, worker, "replica", rounds.cluster.layout.whole)
        replies.extend((hello, Join(("welcomed", worker, source), about=(worker,), after=(hello.key,))))
    return replace(rounds, guests=rounds.guests.update(dict.fromkeys(newcomers, source))), replies


def _commit(rounds: Rounds, plan: Plan, needs: Needs) -> tuple[Rounds, Sequence[Message]]:
    """Issue the merges asked for, in order, but hold those that need a busy worker, and all while any is cancelled."""
    if rounds.cancelled:
        return rounds, ()  # so that every place takes in merges in the order of their numbers
    waiting, replies, still = rounds.held, list[Message](), list[frozenset[Worker]]()
    blocked = set(rounds.busy)
    for group in waiting:
        merge = rounds.merge(sorted(w for w in group if w in rounds.live))
        wanted = needs(rounds.cluster, merge) if merge.group else ()
        if blocked.isdisjoint(wanted):
            busy = rounds.busy
            for worker in wanted:
                busy = busy.set(worker, merge.round)
            rounds, tasks = _issue(replace(rounds, busy=busy), plan, merge)
            replies.extend(tasks)
        else:
            still.append(group)
        blocked.update(wanted)
    return replace(rounds, held=tuple(still)), replies


def _issue(rounds: Rounds, plan: Plan, merge: Merge) -> tuple[Rounds, Sequence[Message]]:
    planned = plan(rounds.cluster, merge) if merge.group or merge.applied else ()  # else all its workers have left
    tasks = [replace(task, round=merge.round) for task in planned]
    join = Join(("merged", merge.round), about=merge.group, after=keys(tasks), round=merge.round)
    return rounds.issue(merge), (*tasks, join)


def _merged(rounds: Rounds, message: Done, number: int, time: float) -> tuple[Rounds, Sequence[Message]]:
    group = rounds.flight[number].group
    busy = rounds.busy if not rounds.busy else Map({w: r for w, r in rounds.busy.items() if r != number})
    rounds = replace(rounds, merged=rounds.merged + 1, flight=rounds.flight.delete(number), busy=busy)
    done = [w for w in group if w in rounds.live and w not in rounds.finished and rounds.exhausted(w)]
    for worker in done:
        rounds = replace(rounds, finished=rounds.finished.set(worker, True))
    return rounds, (message, *(Finished(worker, time) for worker in done), Committed(frozenset(group), time))


def _cancel(rounds: Rounds, needs: Needs, gone: Worker) -> tuple[Rounds, Sequence[Message]]:
    """Drop each merge under way in which a departed worker takes part."""
    replies, cancelled = list[Message](), rounds.cancelled
    for number, merge in sorted(rounds.flight.items()):
        members = needs(rounds.cluster, merge) or tuple(merge.live)
        if gone in members:
            left = tuple(sorted(w for w in members if w in rounds.live))
            cancels = [Cancel(("cancel", number, gone, w), w, number, round=number) for w in left]
            join = Join(("cancelled", number, gone), about=left, after=keys(cancels), round=number)
            replies.extend((*cancels, join))
            cancelled = cancelled.set(number, None)
    return replace(rounds, cancelled=cancelled), replies


def _repairs(rounds: Rounds, merge: Plan, repair: Plan, needs: Needs) -> tuple[Rounds, Sequence[Message]]:
    """Once all cancelled merges are known to have stopped, issue them again in their order, then those that waited."""
    cancelled, replies = rounds.cancelled, list[Message]()
    if None in cancelled.values():
        return rounds, ()
    rounds = replace(rounds, cancelled=Map())
    for number, applied in sorted(cancelled.items()):
        rounds, more = _repair(rounds, merge, repair, needs, rounds.flight[number], applied or ())
        replies.extend(more)
    rounds, more = _commit(rounds, merge, needs)
    return rounds, (*replies, *more)


def _repair(
    rounds: Rounds, merge: Plan, repair: Plan, needs: Needs, old: Merge, known: tuple[PlaceName, ...]
) -> tuple[Rounds, Sequence[Message]]:
    """Issue a cancelled merge again over those who are left, or hold it if it now needs a busy worker."""
    survivors = [worker for worker in old.group if worker in rounds.live]
    applied = tuple(dict.fromkeys((*old.applied, *known)))
    holders = tuple(p for p in applied if p in rounds.live and p not in rounds.guests)  # guests have no model yet
    new = replace(old.over(survivors, rounds.issued, rounds.live), applied=holders, guests=tuple(rounds.guests))
    busy = Map({w: r for w, r in rounds.busy.items() if r != old.round})
    rounds = replace(
        rounds,
        flight=rounds.flight.delete(old.round),
        busy=busy,
        samples=rounds.samples - int(sum(old.weights)),
        merged=rounds.merged + 1,  # the cancelled one is over too
    )
    rest = new.over([worker for worker in survivors if worker not in holders], new.round, new.live)
    wanted = needs(rounds.cluster, rest) if rest.group else ()
    if any(worker in busy for worker in wanted):
        return replace(rounds, held=(frozenset(new.group), *rounds.held)), ()
    rounds = replace(rounds, busy=busy.update({worker: new.round for worker in wanted}))
    return _issue(rounds, repair if new.applied else merge, new)
