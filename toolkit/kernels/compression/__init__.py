"""Codecs on flat arrays, one file each: NumPy only; knows nothing of workers, places or messages."""
