"""Exchanges decide with whom and along which wires updates travel. They know core, and nothing of when."""
