"""Where engines live: in the learner's own process, or in another one."""
