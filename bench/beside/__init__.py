"""Trimtab's trainer and TRL's on equal terms: the cases, one child process for each side, and the signal to go on."""
