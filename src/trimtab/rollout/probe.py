"""The only place that asks a server to show with which parameters it computes: generated tokens behind a long prefix.

The prefix is longer than a block of the server's cache and is the same each time. If the cache outlives the parameters,
tokens behind it are computed from old keys and values, and it shows. Log-probs of a *prompt* would show nothing: a
server that is asked for them computes the prompt anew.
"""

import asyncio
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.adapter import read_adapter
from trimtab.rollout.answer import Answer
from trimtab.rollout.engine import Sampling
from trimtab.rollout.http import Facts, Server
from trimtab.rollout.meet import Language
from trimtab.rollout.place import Held, read_state
from trimtab.rollout.proof import Proof, judge, temperature_between
from trimtab.rollout.score import Row, Scores
from trimtab.rollout.seed import stream_seed

ROWS, TOKENS = 16, 64
"""1024 tokens tell a step at learning rate 1e-5 from bf16's rounding; 64 do not."""
BLOCKS = 2
"""Whole blocks of the cache that the prefix fills."""
TEMPERATURE, SPAN, SLACK = 0.8, 0.1, 0.05
"""Not 1, so that log-probs before and after temperature differ; how far beside it we score; what may be off by."""


@dataclass(frozen=True)
class Shown:
    """What a server generated under one label."""

    rows: list[Row]
    logp: Tensor


@dataclass(frozen=True)
class Probe:
    """The same questions after each load, to one server."""

    server: Server
    scores: Scores
    dtype: torch.dtype
    prompts: tuple[tuple[int, ...], ...]
    tokens: int

    async def warm(self, adapter: str) -> None:
        """Put the prefix into the server's cache, computed with the parameters that will be replaced."""
        _ = await self._ask(0, 1, adapter)

    async def show(self, label: str, adapter: str) -> Shown:
        """Let the server generate. The first answer must find an empty cache; the others find what it left there."""
        first = await self._ask(0, self.tokens, adapter)
        if first.cached:
            raise StaleWeights(
                f"engine {self.server.url}: said that it emptied its prefix cache, and took {first.cached} tokens of "
                "the next prompt from it, so it computes from keys and values of old parameters. Another client may "
                "be using the server; give it one alone, or start it with --no-enable-prefix-caching."
            )
        others = (self._ask(row, self.tokens, adapter) for row in range(1, len(self.prompts)))
        answers = [first, *await asyncio.gather(*others)]
        foreign = {one for answer in answers for one in answer.labels} - {label}
        if foreign:
            raise StaleWeights(
                f"engine {self.server.url}: was given the label {label!r} and answered under {sorted(foreign)}, so it "
                "restarted or obeys another trainer. Load again."
            )
        rows = [Row(prompt, answer.ids) for prompt, answer in zip(self.prompts, answers, strict=True)]
        return Shown(rows, torch.tensor([value for answer in answers for value in answer.logp]))

    def judge(self, version: int, shown: Shown, old: Held, new: Held, noise: float | None) -> Proof:
        """Hold what was shown against both versions. The first time, without `noise`, also measure the temperature."""
        state = self._held(new)
        ours = self.scores(state, shown.rows, TEMPERATURE)
        before = self.scores(self._held(old), shown.rows, TEMPERATURE)
        proof = judge(version, shown.logp, before, ours, [len(row.answer) for row in shown.rows], noise)
        if noise is None or proof.verdict == "refused":
            self._check_temperature(shown, state, proof.drift)
        return proof

    async def _ask(self, row: int, tokens: int, adapter: str) -> Answer:
        how = Sampling(tokens, TEMPERATURE)
        return await self.server.generate(self.prompts[row], how, (), stream_seed("probe", row), adapter=adapter)

    def _held(self, held: Held) -> dict[str, Tensor]:
        """The parameters as the server holds them: rounded to its number format. What rounding does is no error.

        An adapter's matrices are rounded too, and what they add is not: a server adds it to outputs, not to weights.
        """
        state = read_state(held.model)
        state = {name: values.to(self.dtype).to(values.dtype) for name, values in state.items()}
        return state if held.adapter is None else read_adapter(held.adapter).rounded(self.dtype).merged(state)

    def _check_temperature(self, shown: Shown, state: dict[str, Tensor], drift: float) -> None:
        found = TEMPERATURE
        for _ in range(2):  # log-probs are not straight in the temperature: look again where the first look pointed
            low, high = found - SPAN, found + SPAN
            lower, upper = (self.scores(state, shown.rows, end) for end in (low, high))
            found = temperature_between(shown.logp, lower, upper, (low, high))
            if not found > 2 * SPAN:
                return
        if abs(found / TEMPERATURE - 1) <= SLACK:
            return
        if float((shown.logp - self.scores(state, shown.rows, found)).square().mean().sqrt()) < drift / 2:
            raise EngineError(
                f"engine {self.server.url}: was asked for temperature {TEMPERATURE:g} and its log-probs are those of "
                f"about {found:.2f}, so they are not of the distribution that it was asked to sample from. Near 1 they "
                "are raw: start it with --logprobs-mode processed_logprobs. Otherwise look for a proxy or a logits "
                "processor that changes the temperature."
            )


def new_probe(server: Server, facts: Facts, language: Language, scores: Scores) -> Probe:
    """A prefix of random ids that are no special ones, and one more id that makes each row its own."""
    tokens = min(TOKENS, facts.max_length // 4)
    length = min(BLOCKS * facts.block_size, facts.max_length - tokens - 1)
    if facts.caches_prefixes and length < facts.block_size:
        raise EngineError(
            f"engine {server.url}: takes {facts.max_length} tokens and caches blocks of {facts.block_size}, so no "
            "probe fits behind a cached prefix and a stale cache would go unseen. Start it with a larger "
            "--max-model-len or a smaller --block-size, or with --no-enable-prefix-caching."
        )
    ids = language.random_ids(length + ROWS)
    dtype = getattr(torch, facts.dtype, None)
    prompts = tuple((*ids[:length], last) for last in ids[length:])
    return Probe(server, scores, dtype if isinstance(dtype, torch.dtype) else torch.float32, prompts, tokens)
