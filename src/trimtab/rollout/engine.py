"""What a sampling engine is: ids in; ids, log-probs, finish reason and versions out.

Anything with these members serves: the embedded sampler here, an HTTP server elsewhere. This file has no arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Finish = Literal["eos", "length"]


@dataclass(frozen=True)
class Sampling:
    """Draw from the tempered distribution, `samples_per_prompt` times for each prompt.

    `seed` names the random stream: the same seed, prompts and parameters give the same tokens.
    """

    max_new_tokens: int
    temperature: float
    seed: int
    samples_per_prompt: int = 1


@dataclass(frozen=True)
class Greedy:
    """Take the likeliest token each time. The distribution is then a single point, so every log-prob is 0."""

    max_new_tokens: int


@dataclass(frozen=True)
class Sample:
    """One answer as the engine produced it. The end token is part of it when `finish` is "eos".

    Prompt `58213=` answered by `31285<eos>`: six ids, six log-probs, six versions, finish "eos".
    One token, cut off: `Sample(prompt_ids=(4, 5), ids=(6,), logp=tensor([-0.5]), version=(3,), finish="length")`.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logp: Tensor
    """float32, one a token of `ids`: of the distribution really sampled from, temperature included."""
    version: tuple[int, ...]
    """The version of the parameters that chose each token."""
    finish: Finish


class Engine(Protocol):
    """Answers prompts with the parameters it was last given."""

    @property
    def version(self) -> int:
        """The version of the parameters in use."""
        ...

    @property
    def dtype(self) -> str:
        """The number format of its forward pass; with the trainer's it is the dtype pair of a run."""
        ...

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Take over `state` under the name `version`; all of it or nothing."""
        ...

    def sample(self, prompts: Sequence[Sequence[int]], how: Sampling | Greedy) -> list[Sample]:
        """The answers, prompt after prompt, the samples of one prompt side by side."""
        ...
