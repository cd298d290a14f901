"""Runtimes perform tasks and report events: one in virtual time, one on a Dask cluster.

They know no strategy by name.
"""
