"""Which of verl's trainers (0.9.1) runs a configuration, and what it then does with two policies only.

The default one (`trainer.use_v1`) takes the sampler's log-probs for the old ones and reads nothing else of the block.
The one before it, and those that sample on machines of their own, put a loss with a correction in the place of
`loss_mode`.
"""

from trimtab.convert.options import Options

AT = "algorithm.rollout_correction."


def is_apart(options: Options) -> bool:
    """Whether one of the trainers runs that sample on machines of their own."""
    return str(options.get("config_name", "")).startswith(("fully_async", "one_step_off"))


def is_before_v1(options: Options) -> bool:
    return is_apart(options) or not options.switch(
        "trainer.use_v1", True, "how rollout_correction is read", status="changed"
    )


def is_bypassed(options: Options) -> bool:
    """Whether there are two policies, current and sampler; so it is by default where a trainer samples apart."""
    return options.switch(f"{AT}bypass_mode", is_apart(options), "correction", status="changed")


def has_own_loss(options: Options) -> bool:
    """Whether bypass_mode has put a loss of its own in the place of loss_mode."""
    return is_bypassed(options) and is_before_v1(options)
