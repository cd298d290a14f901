"""Dealing rows: each step of each iteration gets a ticket, issued in the order of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from immutables import Map

from toolkit.core.messages import Compute, Key, Stage, Ticket, Worker
from toolkit.core.records import Record, field, replace
from toolkit.core.strategy import Message, Strategy


class Hand(Record):
    """How many rows are dealt, in all and to each worker, and the tickets of the latest iteration of each."""

    dealt: int = 0
    own: Map[Worker, int] = field(default_factory=Map)
    latest: Map[Worker, tuple[Key, tuple[Ticket, ...]]] = field(default_factory=Map)


def deal(rows: int, batch: int, shards: Mapping[Worker, int] | None = None, limit: int | None = None) -> Strategy:
    """Give every step a ticket: which rows it reads.

    Without `shards`, one order of all rows per epoch is dealt to whoever comes next, so that each row is used once per
    epoch under every policy. With `shards`, each worker goes through its own rows, in an epoch of its own. The last
    ticket of an epoch is short. Once `limit` rows are dealt, tickets are empty.

    Parameters
    ----------
    rows : int [rows], >= 1
    batch : int [rows], >= 1
    shards : {worker: rows}, optional
    limit : int [rows], optional
    """

    def ticket(hand: Hand, worker: Worker) -> tuple[Hand, Ticket]:
        size = rows if shards is None else shards.get(worker, 0)
        position = hand.dealt if shards is None else hand.own.get(worker, 0)
        left = batch if limit is None else min(batch, limit - hand.dealt)
        if size == 0 or left <= 0:
            return hand, Ticket(0, 0, 0, None if shards is None else worker)
        epoch, first = divmod(position, size)
        count = min(left, size - first)
        hand = replace(hand, dealt=hand.dealt + count, own=hand.own.set(worker, position + count))
        return hand, Ticket(epoch, first, count, None if shards is None else worker)

    def step(hand: Hand, message: Message) -> tuple[Hand, Sequence[Message]]:
        if not isinstance(message, (Compute, Stage)):
            return hand, (message,) if not hasattr(message, "time") else ()
        worker = message.worker if isinstance(message, Stage) else int(message.at)
        key, tickets = hand.latest.get(worker, ((), ()))
        if key != message.key[1:3]:
            drawn: list[Ticket] = []
            for _ in range(message.steps if isinstance(message, Compute) else 1):
                hand, one = ticket(hand, worker)
                drawn.append(one)
            tickets = tuple(t for t in drawn if t.count) or (drawn[0],)
            hand = replace(hand, latest=hand.latest.set(worker, (message.key[1:3], tickets)))
        return hand, (replace(message, tickets=tickets),)

    return Strategy(lambda cluster: Hand(), step)
