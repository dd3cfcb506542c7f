"""Your own reward, with TRL's signature. It runs in worker processes, with a time limit per answer."""


def units(
    prompts: list[str], completions: list[str], answer: list[str], level: list[int], **columns: object
) -> list[float | None]:
    """1 for the right answer, half for the right number with the wrong unit; no opinion on level 3 (all equal)."""
    del prompts, columns
    return [judged(*row) for row in zip(completions, answer, level, strict=True)]


def judged(written: str, right: str, level: int) -> float | None:
    if level == 3:
        return None  # abstain: the answer does not count in its group and does not train
    if written == right:
        return 1.0
    return 0.5 * (written.rstrip("cm") == right.rstrip("cm"))
