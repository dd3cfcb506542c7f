"""The only place that asks a server to show with which parameters it computes: generated tokens behind a long prefix.

The prefix is longer than a block of the server's cache and is the same each time. If the cache outlives the parameters,
tokens behind it are computed from old keys and values, and it shows. Log-probs of a *prompt* would show nothing: a
server that is asked for them computes the prompt anew.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.engine import Sampling
from trimtab.rollout.http import Answer, Facts, Server
from trimtab.rollout.meet import Language
from trimtab.rollout.place import read_state
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
class Probe:
    """The same questions after each load, to one server."""

    server: Server
    scores: Scores
    prompts: tuple[tuple[int, ...], ...]
    tokens: int

    async def warm(self) -> None:
        """Put the prefix into the server's cache, computed with the parameters that will be replaced."""
        _ = await self._ask(0, 1)

    async def prove(self, version: int, label: str, old: Path, new: Path, *, must: bool) -> Proof:
        """Ask, and hold the answers against both folders. `must`: also measure the temperature."""
        first = await self._ask(0, self.tokens)
        if first.cached:
            raise StaleWeights(
                f"engine {self.server.url}: said that it emptied its prefix cache, and took {first.cached} tokens of "
                "the next prompt from it, so it computes from keys and values of old parameters. Another client may "
                "be using the server; give it one alone, or start it with --no-enable-prefix-caching."
            )
        answers = [first, *await asyncio.gather(*(self._ask(row, self.tokens) for row in range(1, len(self.prompts))))]
        foreign = {label for answer in answers for label in answer.labels} - {label}
        if foreign:
            raise StaleWeights(
                f"engine {self.server.url}: was given the label {label!r} and answered under {sorted(foreign)}, so it "
                "restarted or obeys another trainer. Load again."
            )
        rows = [Row(prompt, answer.ids) for prompt, answer in zip(self.prompts, answers, strict=True)]
        server = torch.tensor([value for answer in answers for value in answer.logp])
        return await asyncio.to_thread(self._judge, version, old, new, rows, server, must)

    async def _ask(self, row: int, tokens: int) -> Answer:
        how = Sampling(tokens, TEMPERATURE)
        return await self.server.generate(self.prompts[row], how, (), stream_seed("probe", row))

    def _judge(self, version: int, old: Path, new: Path, rows: list[Row], server: Tensor, must: bool) -> Proof:
        state = read_state(new)
        ours = self.scores(state, rows, TEMPERATURE)
        before = self.scores(read_state(old), rows, TEMPERATURE)
        proof = judge(version, server, before, ours, [len(row.answer) for row in rows])
        if must or proof.verdict == "refused":
            low, high = TEMPERATURE - SPAN, TEMPERATURE + SPAN
            lower, upper = self.scores(state, rows, low), self.scores(state, rows, high)
            found = temperature_between(server, lower, upper, (low, high))
            if abs(found / TEMPERATURE - 1) > SLACK and found > 0:
                there = self.scores(state, rows, found)
                if (server - there).square().mean().sqrt() < proof.drift / 2:
                    raise EngineError(
                        f"engine {self.server.url}: was asked for temperature {TEMPERATURE:g} and its log-probs are "
                        f"those of {found:.2f} (about 1: raw log-probs), so they are not of the distribution that it "
                        "was asked to sample from. Start it with --logprobs-mode processed_logprobs, and look for a "
                        "proxy or a logits processor that changes the temperature."
                    )
        return proof


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
    prompts = tuple((*ids[:length], last) for last in ids[length:])
    return Probe(server, scores, prompts, tokens)
