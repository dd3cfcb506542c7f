"""An examination: what is checked, in child processes, with limits, and what is recorded of it."""
