"""Reward functions that go wrong, or too far, on purpose."""


def enormous(prompts, completions, completion_ids, **columns):  # type: ignore[no-untyped-def]
    """Finite, but stretched by 1e20 too large for the square in a gradient norm."""
    return [9e17 if len(text) % 2 else -9e17 for text in completions]


def everything_wrong(prompts, completions, completion_ids, **columns):  # type: ignore[no-untyped-def]
    """One way to fail for each last digit of the prompt; the others get an honest reward."""
    import os
    import time

    print("x" * 200_000)
    rewards = []
    for prompt, text, answer in zip(prompts, completions, columns["answer"], strict=True):
        kind = int(prompt[0])
        if kind == 0:
            while True:
                time.sleep(0.01)
        if kind == 1:
            os._exit(3)
        if kind == 2:
            raise RuntimeError("no idea")
        if kind == 3:
            rewards.append(float("nan"))
        elif kind == 4:
            rewards.append(None)
        elif kind == 5 and os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        else:
            rewards.append(float(text == answer))
    return rewards


def odd(prompts, completions, completion_ids, **columns):  # type: ignore[no-untyped-def]
    """Answers of an odd length are right: half of what is drawn at random."""
    return [float(len(text) % 2) for text in completions]
