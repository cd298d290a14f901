"""Numerics on flat vectors, in JAX: gradients, optimizer steps, pipeline stages, codecs, corrections.

This layer knows arrays, models and optax; of the control plane it knows only messages and layouts. It knows nothing
of workers, places, runtimes or where rows come from.
"""
