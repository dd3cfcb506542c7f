"""How long a run will take, before it is run: its own runtime and buffer, under a clock that nobody waits for."""
