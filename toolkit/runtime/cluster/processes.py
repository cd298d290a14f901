"""The processes of a cluster of Dask: connected, counted, and more of them where we may."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Client

from toolkit.core.errors import Refused
from toolkit.runtime.cluster.agent import Agent, card
from toolkit.runtime.cluster.local import Local

#: Seconds in which a scheduler must answer, a missing worker may still come, and one of our own must have started.
CONNECT, COME, START = 10.0, 5.0, 60.0
#: Seconds between two counts.
LOOK = 0.2


def connected(cluster: Any) -> Client:
    """A client of a cluster, or of the scheduler at an address; a client is itself."""
    if isinstance(cluster, Client):
        if cluster.asynchronous:
            raise Refused(
                "Dask was given an asynchronous client. A run is waited for, and would block the loop of that client. "
                "Give an ordinary Client, or the address of the scheduler."
            )
        return cluster
    try:
        return Client(cluster, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise Refused(
            f"No scheduler answered at {address(cluster)} within {CONNECT:g} s ({type(error).__name__}: {error}). A "
            f"run needs one. Check the address, start a scheduler there, or leave it out to start processes here."
        ) from None


def cards(client: Client, needed: int, owned: Local | None) -> list[dict[str, Any]]:
    """The cards of `needed` processes, those that take part in no run first; what is missing is waited for."""
    client.register_plugin(Agent())
    late = time.monotonic() + (COME if owned is None else START)
    while len(found := client.run(card, on_error="ignore").values()) < needed:
        if time.monotonic() > late:
            raise Refused(
                f"The run needs {needed} processes and the cluster at {address(client)} has {len(found)}. Each host of "
                f"places and the coordinator have one of their own. Start {needed - len(found)} more Dask workers, or "
                f"let places share a host by hosts={{place: host}}."
            )
        time.sleep(LOOK)
        replenish(client, needed, owned)
    return sorted(found, key=lambda c: (c["member"] is not None, c["machine"], c["address"]))[:needed]


def replenish(client: Client, needed: int, owned: Local | None) -> None:
    """Start what is missing, if we may; a cluster misses a process that was retired only after a while."""
    if owned is not None:
        owned.scale(needed)
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(needed, timeout=2.0)


def address(cluster: Any) -> str:
    """The address of the scheduler of a client or cluster, or the address itself."""
    if isinstance(cluster, Client):
        return str(cluster.scheduler.address if cluster.scheduler else "a closed client")
    return str(getattr(cluster, "scheduler_address", cluster))


def warn_if_crowded(count: int, cards: Sequence[Mapping[str, Any]]) -> bool:
    """Say if more processes compute than there are cores for them, and return whether it is so."""
    cores = sum(len(c["cores"]) for c in {c["machine"]: c for c in cards}.values())
    if count > cores:
        warnings.warn(
            f"{count} processes compute on {cores} cores: their steps take turns, and times say little about a real "
            f"cluster. The record of the run is flagged as oversubscribed.",
            stacklevel=4,
        )
    return count > cores
