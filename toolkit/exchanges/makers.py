"""The maker of exchanges: iterations and merges, named and counted, from two plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from immutables import Map

from toolkit.core.checks import function
from toolkit.core.cluster import Cluster
from toolkit.core.messages import (
    RISING,
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
Answer: TypeAlias = tuple[Rounds, Sequence[Message]]


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

    plans = Plans(begin, merge, repair, needs)
    answers: dict[type, Callable[[Rounds, Any], Answer]] = {
        Joined: plans.joined,
        Left: plans.left,
        Done: plans.done,
        Release: plans.release,
        Commit: plans.commit,
    }

    def step(rounds: Rounds, message: Message) -> Answer:
        answer = answers.get(type(message))
        if answer is None:
            return rounds, (() if RISING[type(message)] else (message,))
        return answer(rounds, message)

    return Strategy(Rounds, step, "exchange", places)


@dataclass(frozen=True)
class Plans:
    """What an exchange is made of, and how it answers each kind of message."""

    begin: Begin
    merge: Plan
    repair: Plan | None
    needs: Needs

    def joined(self, rounds: Rounds, event: Joined) -> Answer:
        """A newcomer waits for a replica, if there are replicas and they have moved."""
        late = self.repair is not None and rounds.issued > 0
        guests = rounds.guests.set(event.worker, event.worker) if late else rounds.guests
        return replace(rounds, time=event.time, live=rounds.live.set(event.worker, True), guests=guests), ()

    def left(self, rounds: Rounds, event: Left) -> Answer:
        """Merges among replicas are cancelled, and who was to have a replica from it asks another."""
        worker, guests = event.worker, rounds.guests
        rounds = replace(rounds, time=event.time)
        if worker not in rounds.live:
            return rounds, ()
        guests = guests.delete(worker) if worker in guests else guests
        rounds = replace(rounds, live=rounds.live.delete(worker), guests=guests)
        rounds, cancels = _cancel(rounds, self.needs, worker) if self.repair else (rounds, ())
        rounds, hellos = _welcome(rounds, self.begin, [w for w, source in guests.items() if source == worker])
        return rounds, (event, *cancels, *hellos)

    def done(self, rounds: Rounds, event: Done) -> Answer:
        """An update is ready, a merge is in, a merge has stopped, or a newcomer has its replica."""
        rounds = replace(rounds, time=event.time)
        key: Any = event.task.key
        if key[0] == "ready" and key[1] in rounds.live:
            rounds = replace(rounds, rows=rounds.rows.set(key[1], event.facts.get("samples", 1)))
            return rounds, (event, Ready(key[1], event.time, rounds.stale(key[1])))
        match key:
            case ("merged", int(number)) if number in rounds.flight:
                rounds, replies = _merged(rounds, event, number)
                rounds, more = _commit(rounds, self.merge, self.needs)
                return rounds, (*replies, *more)
            case ("cancelled", int(number), _) if rounds.cancelled.get(number, ()) is None:
                applied = tuple(event.facts.get("applied", ()))
                rounds = replace(rounds, cancelled=rounds.cancelled.set(number, applied))
                rounds, replies = _repairs(rounds, self.merge, self.repair or self.merge, self.needs)
                return rounds, (event, *replies)
            case ("welcomed", int(worker), source) if rounds.guests.get(worker) == source:
                rounds = replace(rounds, guests=rounds.guests.delete(worker))
                rounds, replies = _begin(rounds, self.begin, [worker])
                return rounds, (event, *replies)
        return rounds, ()

    def release(self, rounds: Rounds, action: Release) -> Answer:
        """The workers begin, but those without a row or a replica left."""
        return _release(rounds, self.begin, action.workers)

    def commit(self, rounds: Rounds, action: Commit) -> Answer:
        """The updates are merged, if nobody is in the way."""
        return _commit(replace(rounds, held=(*rounds.held, action.group)), self.merge, self.needs)


def _release(rounds: Rounds, begin: Begin, workers: frozenset[Worker]) -> Answer:
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


def _begin(rounds: Rounds, begin: Begin, workers: Sequence[Worker]) -> Answer:
    rounds, replies = rounds.start(workers), list[Message]()
    for worker in workers:
        tasks = begin(rounds.cluster, worker, rounds.clock[worker])
        ready = Join(("ready", worker, rounds.clock[worker]), about=(worker,), after=keys(tasks))
        replies.extend((*tasks, ready))
    return rounds, replies


def _welcome(rounds: Rounds, begin: Begin, newcomers: Sequence[Worker]) -> Answer:
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


def _commit(rounds: Rounds, plan: Plan, needs: Needs) -> Answer:
    """Issue the merges asked for, in order, but hold those that need a busy worker, and all while any is cancelled."""
    if rounds.cancelled or not rounds.held:
        return rounds, ()  # so that every place takes in merges in the order of their numbers
    replies, still, blocked = list[Message](), list[frozenset[Worker]](), set[Worker]()
    for group in rounds.held:
        merge = rounds.merge(sorted([w for w in group if w in rounds.live]))
        wanted = needs(rounds.cluster, merge) if merge.group else ()
        if any(worker in blocked or worker in rounds.busy for worker in wanted):
            still.append(group)
            blocked.update(wanted)
        else:
            rounds, tasks = _issue(rounds, plan, merge, wanted)
            replies.extend(tasks)
    return replace(rounds, held=tuple(still)), replies


def _issue(rounds: Rounds, plan: Plan, merge: Merge, wanted: Sequence[Worker]) -> Answer:
    planned = plan(rounds.cluster, merge) if merge.group or merge.applied else ()  # else all its workers have left
    tasks = [replace(task, round=merge.round) for task in planned]
    join = Join(("merged", merge.round), about=merge.group, after=keys(tasks), round=merge.round)
    return rounds.issue(merge, wanted), (*tasks, join)


def _merged(rounds: Rounds, event: Done, number: int) -> Answer:
    group = rounds.flight[number].group
    rounds = rounds.end(number)
    done = [w for w in group if rounds.exhausted(w) and w in rounds.live and w not in rounds.finished]
    for worker in done:
        rounds = replace(rounds, finished=rounds.finished.set(worker, True))
    finished = [Finished(worker, event.time) for worker in done]
    return rounds, (event, *finished, Committed(frozenset(group), event.time))


def _cancel(rounds: Rounds, needs: Needs, gone: Worker) -> Answer:
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


def _repairs(rounds: Rounds, merge: Plan, repair: Plan, needs: Needs) -> Answer:
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
) -> Answer:
    """Issue a cancelled merge again over those who are left, or hold it if it now needs a busy worker."""
    survivors = [worker for worker in old.group if worker in rounds.live]
    applied = tuple(dict.fromkeys((*old.applied, *known)))
    holders = tuple(p for p in applied if p in rounds.live and p not in rounds.guests)  # guests have no model yet
    new = replace(old.over(survivors, rounds.issued, rounds.live), applied=holders, guests=tuple(rounds.guests))
    rounds = replace(rounds.end(old.round), samples=rounds.samples - int(sum(old.weights)))
    rest = new.over([worker for worker in survivors if worker not in holders], new.round, new.live)
    wanted = needs(rounds.cluster, rest) if rest.group else ()
    if any(worker in rounds.busy for worker in wanted):
        return replace(rounds, held=(frozenset(new.group), *rounds.held)), ()
    return _issue(rounds, repair if new.applied else merge, new, wanted)
