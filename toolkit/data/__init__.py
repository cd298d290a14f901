"""Data: where rows come from, in which order they are read, and which worker owns them.

This layer knows NumPy and the words of :mod:`toolkit.core.messages`; it knows neither models nor runtimes.
:mod:`toolkit.data.dask` alone knows Dask, xarray and Zarr. Nothing here ever touches the network.
"""
