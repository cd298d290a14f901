"""Updates summed in buckets: the same sum, the same bytes, whatever their size."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import toolkit as tk


def trained(exchange: tk.Strategy, *rewrites: tk.Strategy) -> tk.Run:
    return tk.train(
        tk.problems.digits(),
        tk.chain(tk.bsp(), exchange, *rewrites),
        optimizer="sgd(0.1)",
        on=tk.Simulator(3, link=tk.Link(1e-4, 1e8)),
        until=tk.updates(4),
        progress=False,
    )


def vector(run: tk.Run) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)])


@pytest.mark.parametrize("schedule", [tk.ring, tk.tree, tk.halving_doubling], ids=lambda f: f.__name__)
def test_buckets_add_up_to_the_sum_in_one_piece(schedule):
    whole, cut = trained(tk.all_reduce(schedule)), trained(tk.all_reduce(schedule, bucket=1000))
    np.testing.assert_allclose(vector(cut), vector(whole), rtol=0, atol=1e-6)
    assert cut.trace.nbytes.sum() == whole.trace.nbytes.sum()
    assert (cut.trace.kind == "hop").sum() > 2 * (whole.trace.kind == "hop").sum()
    np.testing.assert_array_equal(vector(cut.replay()), vector(cut))


def test_buckets_of_codes_that_can_be_added():
    codes = trained(tk.all_reduce(tk.ring, bucket=1000), tk.compress(tk.fp16()))
    np.testing.assert_allclose(vector(codes), vector(trained(tk.all_reduce(tk.ring))), rtol=0, atol=1e-3)


@pytest.mark.parametrize("bucket", [0, -1, float("nan"), "4 MB"])
def test_a_bucket_holds_something(bucket):
    with pytest.raises((ValueError, TypeError), match="bucket"):
        tk.all_reduce(tk.ring, bucket=bucket)
