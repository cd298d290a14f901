"""Learners that a process keeps, so that a second run of the same problem compiles nothing again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING

import cloudpickle

from toolkit.kernels.training import Learner

if TYPE_CHECKING:
    from toolkit.place import Setup

#: How many are kept; each holds compiled functions and the initial vector of a model.
KEPT = 2

_learners: OrderedDict[str, Learner] = OrderedDict()


def learner(setup: Setup) -> Learner:
    """The learner of a setup: one that was kept if problem, seed, state policy and precision are the same."""
    known = cloudpickle.dumps((setup.problem, setup.cluster.seed, setup.state, setup.x64))
    digest = hashlib.sha256(known).hexdigest()
    made = _learners.pop(digest, None) or Learner(setup.problem, setup.cluster.seed, setup.state)  # type: ignore[arg-type]
    _learners[digest] = made
    while len(_learners) > KEPT:
        _learners.popitem(last=False)
    return made
