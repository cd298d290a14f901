"""The Dask runtime: agents perform tasks, a coordinator drives. With ``data/dask.py`` the only code that knows Dask."""
