"""Bindings of frameworks: how each one's functions are called on a case."""
