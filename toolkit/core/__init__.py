"""Control: names, numbers and decisions. Standard library and persistent maps only; no array, no clock, no Dask."""
