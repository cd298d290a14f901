"""Rewrites decide how a task is done: in more local steps, in fewer bytes, in stages. They know core alone."""
