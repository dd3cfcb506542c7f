"""What a sampling engine is: ids in; ids, log-probs, finish reason and versions out.

Any object with these members works: the embedded sampler here, an HTTP server elsewhere. This file has no arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from trimtab.rollout.publication import Publication

Finish = Literal["eos", "length", "abort"]
"""Why an answer ended: the policy closed it, it was long enough, or the engine was told to stop it."""


@dataclass(frozen=True)
class Request:
    """One answer to sample: the ids that it continues, and the seed of the random stream that draws it.

    The i-th token of the answer is drawn with a number that depends on `seed` and i alone, so an answer does not
    depend on the requests beside it. Neighbours with equal `ids` share one pass over them.
    """

    ids: tuple[int, ...]
    seed: int
    order: tuple[int, ...] = ()
    """Who goes first where not all can: (ticket, sample, turn), the smallest first. It changes no token."""


@dataclass(frozen=True)
class Sampling:
    """Draw from the tempered distribution, cut to `top_k` tokens (0: all), then to the share `top_p` (1: all).

    `record_support` keeps the ids that the cut left, so that a trainer can compute its log-probs over the same ones.
    """

    max_new_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    record_support: bool = False

    @property
    def truncates(self) -> bool:
        """Whether any token can be ruled out."""
        return self.top_p < 1 or self.top_k > 0


@dataclass(frozen=True)
class Greedy:
    """Take the likeliest token each time. The distribution is then a single point, so every log-prob is 0."""

    max_new_tokens: int


@dataclass(frozen=True)
class Sample:
    """One answer as the engine produced it. The end token is part of it when `finish` is "eos".

    Prompt `58213=` answered by `31285<eos>`: six ids, six log-probs, six versions, finish "eos".
    One token, cut off: `Sample(ids=(6,), logp=tensor([-0.5]), version=(3,), finish="length")`.
    One that was stopped for new parameters has finish "abort": what it holds is good, and the rest is asked for anew.
    """

    ids: tuple[int, ...]
    logp: Tensor
    """float32, one per token of `ids`, under the distribution that was sampled from: after temperature and cuts."""
    version: tuple[int, ...]
    """The version of the parameters that chose each token."""
    finish: Finish
    support: tuple[tuple[int, ...], ...] | None = None
    """For each token the ids it was drawn from, ascending, if they were asked for. None if nothing was ruled out."""


class Engine(Protocol):
    """Answers prompts with the parameters it was last given."""

    @property
    def version(self) -> int:
        """The version of the parameters in use."""
        ...

    @property
    def dtype(self) -> str:
        """The number format of its weights; with the trainer's it is the dtype pair of a run."""
        ...

    def load(self, state: Mapping[str, Tensor], version: int, digest: str) -> None:
        """Take over `state` under the name `version`, all of it or nothing; `digest` is the publisher's checksum."""
        ...

    def sample(self, requests: Sequence[Request], how: Sampling | Greedy) -> list[Sample]:
        """One answer for each request, in their order."""
        ...


class AsyncEngine(Protocol):
    """An engine that answers many requests at once, each when it is done.

    `load` stops what is being answered: those samples come back with finish "abort" and the tokens drawn so far, each
    with the version that chose it. Keys and values of old parameters are never used again.
    """

    @property
    def version(self) -> int:
        """The version that was proven to be in use; -1 before the first."""
        ...

    @property
    def dtype(self) -> str: ...

    @property
    def slots(self) -> int:
        """How many requests it answers at once; whoever asks for more waits."""
        ...

    async def generate(self, request: Request, how: Sampling | Greedy) -> Sample:
        """One answer. Cancelling the call ends it on the engine too."""
        ...

    async def load(self, publication: Publication) -> int:
        """Take over the parameters, all of them or nothing, prove it, and say which version is in use."""
        ...

    async def close(self) -> None: ...
