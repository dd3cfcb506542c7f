"""What a run of `trimtab train` does not record, though formulas may read it: the only place that lists it."""

NOT_RECORDED = {
    "rewards": "several rewards per episode",
    "baseline": "a baseline of the caller's for each episode",
    "observed": "the log-probs of what the environment wrote",
    "logp_teacher": "the log-probs of a teacher",
    "pi_squared": "the sum of squared probabilities at each token",
    "state": "the name of the state at each turn",
    "role": "the role of each episode",
}
"""Field of a batch to what it is."""
