"""Tiny batches: the case with all its views, where cases come from, and what can be changed in one."""
