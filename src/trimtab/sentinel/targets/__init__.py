"""Bindings of frameworks: how the functions of each framework are called on a case."""
