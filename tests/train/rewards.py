"""Reward functions that go wrong, or too far, on purpose."""


def enormous(prompts, completions, completion_ids, **columns):  # type: ignore[no-untyped-def]
    """Finite, but too large for the square in a gradient norm."""
    return [3e38 if len(text) % 2 else -3e38 for text in completions]
