"""Layers with flax's parameters, names and modes, on kernels that are fast on CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from flax import nnx

from toolkit.kernels.convolution import convolve
from toolkit.kernels.normalization import normalize


class Convolution(nnx.Conv):
    """``flax.nnx.Conv`` along one or two axes, with padding ``"SAME"`` and one stride, without masks or groups."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]  # flax's options are left out
        """Activations [rows, ..., channels]."""
        kernel = self.kernel[...]
        stride = self.strides[0] if isinstance(self.strides, Sequence) else self.strides or 1
        single = x.ndim == 3
        images, weights = (x[:, None], kernel[None]) if single else (x, kernel)
        if weights.shape[:2] == (1, 1):
            images, stride = images[:, ::stride, ::stride], 1
        y = convolve(images, weights, stride)
        y = y[:, 0] if single else y
        return y if self.bias is None else y + self.bias[...].reshape((1,) * (x.ndim - 1) + (-1,))


class BatchNorm(nnx.BatchNorm):
    """``flax.nnx.BatchNorm`` over the last axis, with the derivative in closed form."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]  # flax's options are left out
        """Activations [..., channels]: with the statistics of the batch in training mode, else with running ones."""
        if self.use_running_average or self.scale is None or self.bias is None:
            return super().__call__(x)
        y, mean, variance = normalize(x, self.scale[...], self.bias[...], self.epsilon)
        for running, now in ((self.mean, mean), (self.var, variance)):
            moved = self.momentum * running[...] + (1 - self.momentum) * now
            running[...] = moved.astype(running.dtype)
        return y
