"""Policies decide when a worker may go on and when updates are merged. They know core, and nothing of wires."""
