"""Known bugs without a row, with the reason: there is no function and no group of statements that could be run."""

# ruff: noqa: E501

NOT_TRIED: dict[str, str] = {
    "SLIME-REWARD-PAIR": "pairs a list of the whole batch with lists of one rank inside a logging loop; the repair is in another file",
    "SLIME-PERTOKEN-CP": "the missing factor is cancelled by Megatron's own gradient scaling, which would have to be modelled",
    "SLIME-PARTIAL-MASK": "statements of an async generate() around an HTTP call; no mask is made before the repair",
    "SLIME-QWEN3-MASK": "the repair adds a function for another chat template; a tokenizer with that template is needed",
    "MILES-CP-TERMINAL": "shows only with contiguous context-parallel chunks and their collectives, for which there are no stand-ins",
    "NEMO-DYNSAMPLE": "the filter reads a shaped reward because a caller never kept the raw one: three functions apart",
    "NEMO-TOPLOGPROB": "reads a vLLM response object inside a generation worker",
    "PRIME-NORM-MB": "statements of a training step around the model's forward pass",
    "PRIME-FORK-ONCE": "needs verifiers' trace and branch objects",
    "ROLL-NUMTOK-DICT": "dividing by a dictionary raises, so it is not quiet",
    "OI-ZERO2": "gradients are dropped inside DeepSpeed",
    "SKYRL-TX-MASKEDMEAN": "needs jax",
    "TRL-GRADACC": "one attribute that transformers' Trainer reads",
    "TRL-RLOO-TOKENKL": "as read from the diff, the repair leaves the same sum",
}  # fmt: skip
