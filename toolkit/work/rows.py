"""The training rows behind tickets, the same for every process that asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from toolkit.core.messages import Ticket, Worker
from toolkit.data.sampling import positions
from toolkit.data.sources import targets
from toolkit.kernels.training import Rows as Batch

if TYPE_CHECKING:
    from toolkit.place import Setup


class Rows:
    """The rows of a run's problem, and who owns them if they are dealt to the workers first."""

    def __init__(self, setup: Setup) -> None:
        self.source, self.seed = setup.problem.train, setup.cluster.seed
        self.shards = deal(setup)

    def batch(self, ticket: Ticket) -> Batch:
        """Inputs and targets of a ticket."""
        if not ticket.count:
            return self.source.take(np.zeros(0, np.int64))
        return self.source.take(positions(ticket, self.source, self.seed, self.shards))


def deal(setup: Setup) -> dict[Worker, NDArray[np.int64]] | None:
    """The rows of each worker; None: all rows are for everybody."""
    if setup.way is None:
        return None
    labels = targets(setup.problem.train) if setup.way.labelled else None
    return setup.way(setup.problem.train.rows, setup.cluster.workers, setup.cluster.seed, labels)


def dealt(setup: Setup, ticket: Ticket) -> int:
    """The rows dealt before a ticket, to all workers together; of shards, as if all were as far as this worker."""
    if ticket.shard is None:
        return ticket.epoch * setup.problem.train.rows + ticket.first
    own = (setup.shards or {}).get(ticket.shard, 0)
    return (ticket.epoch * own + ticket.first) * len(setup.cluster.workers)


def counts(setup: Setup) -> set[int]:
    """The numbers of rows that a step can read: a batch, and the short tails of epochs and of the run."""
    batch, rows = setup.problem.batch, setup.problem.train.rows
    sizes = [rows] if setup.shards is None else list(setup.shards.values())
    tails = {size % batch for size in sizes} | {min(batch, size) for size in sizes}
    if setup.limit is not None:
        tails.add((setup.limit % rows) % batch)
    return {count for count in tails | {batch} if 0 < count <= max(sizes)}
