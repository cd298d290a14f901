"""Operations of hosts that are joined by hand: whatever arrives first, the same is done, and everything is done."""

from __future__ import annotations

import random

import pytest

import toolkit as tk
from toolkit.core.cluster import Cluster, hosts
from toolkit.core.layout import Layout, Piece
from toolkit.core.messages import Apply, Cancel, Chunk, Commit, Done, Join, Joined, Mix, Reduce, Send
from toolkit.runtime.cluster.coordinator import concerned
from toolkit.runtime.cluster.operations import Arrival, Operations

LAYOUT = Layout((Piece("w", 60, ""),))


class Net:
    """Some hosts whose operations are done one at a time, in an order drawn from a seed."""

    def __init__(self, where, seed: int) -> None:
        self.where, self.random = where, random.Random(seed)
        self.ops = {h: Operations(lambda p, h=h: where.get(p, p) == h) for h in set(where.values())}
        self.ready: list = []  # (host, op)
        self.flying: list = []  # (host, arrival)
        self.done: list = []  # (role, key, place)

    def tell(self, host, tasks) -> None:
        self.ready += [(host, op) for op in self.ops[host].add(tasks)]

    def step(self) -> bool:
        pool = self.ready or self.flying if self.random.random() < 0.5 else self.flying or self.ready
        if not pool:
            return False
        host, item = pool.pop(self.random.randrange(len(pool)))
        if isinstance(item, Arrival):
            op = self.ops[host].arrive(item)
            self.ready += [(host, op)] if op else []
            return True
        if not self.ops[host].knows(item):
            return True
        task = item.task
        self.done.append((item.role, task.key, item.place))
        if item.role == "out":
            self.flying.append((self.where[task.dst], Arrival(task.key, task.dst, task.round, (), 0, 0, 0, 0)))
        self.ready += [(host, op) for op in self.ops[host].done(item)]
        return True

    def run(self) -> None:
        while self.step():
            pass


def replies(strategy, workers: int):
    """The tasks of one iteration and one merge of all workers."""
    cluster = Cluster(tuple(range(workers)), LAYOUT)
    homes = strategy.places(cluster, {})
    state, out = strategy.init(cluster), []
    for worker in range(workers):
        state, answer = strategy.step(state, Joined(worker, 0.0))
        out.append(answer)
    joins = [task for answer in out for task in answer if isinstance(task, Join)]
    for join in joins:
        state, answer = strategy.step(state, Done(join, 1.0, {"samples": 1}))
        out.append(answer)
    return homes, [[t for t in answer if hasattr(t, "key")] for answer in out]


STRATEGIES = [
    tk.chain(tk.bsp(), tk.all_reduce(tk.ring)),
    tk.chain(tk.bsp(), tk.all_reduce(tk.tree)),
    tk.chain(tk.bsp(), tk.all_reduce(tk.halving_doubling)),
    tk.chain(tk.backup(1), tk.all_reduce(tk.ring)),
    tk.chain(tk.bsp(), tk.parameter_server(2)),
    tk.chain(tk.bsp(), tk.all_gather()),
    tk.chain(tk.bsp(), tk.gossip(tk.ring_neighbours)),
    tk.chain(tk.bsp(), tk.parameter_server(1, "separate"), tk.pipeline(2, 2)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("together", [False, True])
def test_everything_is_done_whatever_comes_first(strategy, seed, together):
    homes, batches = replies(strategy, 4)
    where = hosts(Cluster((0, 1, 2, 3), homes=homes), {1: 0} if together else None)
    net = Net(where, seed)
    tasks = [task for batch in batches for task in batch if not isinstance(task, Join)]
    letters = {h: [] for h in net.ops}
    for batch in batches:
        for host in net.ops:
            mine = [t for t in batch if not isinstance(t, Join) and host in {where.get(p, p) for p in concerned(t)[0]}]
            if mine:
                letters[host].append(mine)
    order = [host for host, mine in letters.items() for _ in mine]
    net.random.shuffle(order)
    for host in order:  # replies come late, and to each host at another time
        net.tell(host, letters[host].pop(0))
        for _ in range(net.random.randrange(4)):
            net.step()
    net.run()
    did = {(role, key) for role, key, _ in net.done}
    for task in tasks:
        role = {Send: "in", Reduce: "end"}.get(type(task), "work")
        assert (role, task.key) in did, task
    assert len(net.done) == len(set(net.done))
    after_all(net, tasks)


def after_all(net: Net, tasks) -> None:
    """No task was done before what it waits for, and the model of each place was touched in the order asked for."""
    at = {}
    for i, (role, key, _) in enumerate(net.done):
        if role in ("in", "work", "end"):
            at[key] = i  # of a sum: when the last member was done
    began = {key: i for i, (role, key, _) in enumerate(net.done) if role in ("work", "out")}
    for task in tasks:
        for key in task.after:
            if not isinstance(task, (Reduce,)) and ("end", key) not in {(r, k) for r, k, _ in net.done}:
                assert at[key] < began[task.key]
    for place in {t.at for t in tasks if isinstance(t, (Apply, Mix))}:
        asked = [t.key for t in tasks if isinstance(t, (Apply, Mix)) and t.at == place]
        assert [key for role, key, p in net.done if role == "work" and p == place and key in asked] == asked


@pytest.mark.parametrize("seed", range(5))
def test_a_chunk_is_written_in_the_order_of_the_schedule(seed):
    group = (0, 1, 2, 3, 4)
    task = Reduce(("reduce", 0), group, "tree", (0, 60), (1.0,) * 5, round=0)
    net = Net({place: place for place in group}, seed)
    for host in group:
        net.tell(host, [task])
    net.run()
    for place in group:
        landed = [key[-1] for role, key, p in net.done if role == "in" and p == place]
        assert landed == sorted(landed)


def test_a_cancelled_merge_leaves_nothing_behind():
    task = Reduce(("reduce", 0), (0, 1), "ring", (0, 60), (1.0, 1.0), round=0)
    apply = Apply(("apply", 0, 0), 0, (0, 1), (1, 1), "sum", (0, 60), (1, 1), (0, 0), after=(task.key,), round=0)
    later = Mix(("mix", 1, 0), 0, (0,), (1.0,), (0, 60), round=1)
    net = Net({0: 0, 1: 1}, 0)
    net.tell(0, [task, apply])
    net.tell(0, [later])
    cancel = Cancel(("cancel", 0, 1, 0), 0, 0, round=0)
    freed = net.ops[0].drop(cancel)
    assert [op.task.key for op in freed] == [later.key]  # it waited only for its turn
    late = Arrival(("hop", 0, 1), 0, 0, (), 0, 0, 0, 0)
    assert net.ops[0].arrive(late) is None
    assert [op.task for op in net.ops[0].add([cancel])] == [cancel]


def test_tasks_speak_of_places():
    chunk = Chunk(("hop", 0, 0), 0, 1, ("reduce", 0), (0, 60), 0, 1, 2, True)
    assert concerned(chunk) == ((0, 1), (0,))
    with pytest.raises(ValueError, match="no task that a runtime knows"):
        concerned(Commit(frozenset()))  # type: ignore[arg-type]
