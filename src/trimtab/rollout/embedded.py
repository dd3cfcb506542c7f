"""The only place that owns a sampler's parameters in this process: a Hugging Face model, a format, a version.

The trainer reaches it through `load` alone, as it would reach an engine on another machine. It does not know tasks,
rewards or text.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.decode import Forward
from trimtab.rollout.engine import Greedy, Request, Sample, Sampling
from trimtab.rollout.formats import Format, check_format, linear_weights, rounded_state
from trimtab.rollout.forward import Own, fastest_forward
from trimtab.rollout.running import Running
from trimtab.rollout.weights import digest as digest_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Embedded:
    """An `Engine` on the CPU or one GPU. Version -1 means that nothing was loaded yet."""

    def __init__(
        self, model: "PreTrainedModel", *, pad_id: int, eos_ids: Sequence[int], format: str = "fp32", max_rows: int = 0
    ) -> None:
        """`eos_ids`: every token that ends an answer."""
        _check_layers(model)
        self._model: PreTrainedModel = model.float().eval().requires_grad_(False)
        self._pad_id: int = pad_id
        self._eos_ids: tuple[int, ...] = tuple(eos_ids)
        self._format: Format = check_format(format)
        self._matrices: dict[str, bool] = linear_weights(model)
        self._vocabulary: int = cast(nn.Embedding, model.get_input_embeddings()).weight.shape[0]
        self._positions: int | None = getattr(model.config, "max_position_embeddings", None)
        self._max_rows: int = max_rows
        self._version: int = -1
        self._forward: Forward = Own(self._model)
        self._decode: str = ""
        self._running: Running = self._new_batch()

    @property
    def decode(self) -> str:
        """How tokens are computed: `lean Qwen3`, or `transformers` and why; empty before the first load."""
        return self._decode

    @property
    def version(self) -> int:
        return self._version

    @property
    def dtype(self) -> str:
        return self._format

    def load(self, state: Mapping[str, Tensor], version: int, digest: str) -> None:
        """Take over the parameters. Everything is checked on a copy first, so a refusal leaves the old ones in use.

        The checksum is computed from that copy: from what the engine will hold, not from what the publisher has.
        """
        if started := len(self.started):
            raise EngineError(
                f"Embedded.load: {started} answers are being sampled, so their keys and values would be "
                "those of two versions. Call abort first, and ask for the rest anew."
            )
        if version <= self._version:
            raise StaleWeights(
                f"Embedded.load: version {version} is not newer than {self._version}, so its tokens could not be told "
                "from those of the version in use. Publish with a version that grows."
            )
        own = self._model.state_dict()
        source = _sources(own, state)
        held = {name: tensor.detach().clone() for name, tensor in state.items()}
        if (found := digest_of(held)) != digest:
            raise StaleWeights(
                f"Embedded.load: the parameters of version {version} have the checksum {found[:16]}… and their "
                f"publisher says {digest[:16]}…, so they changed on the way; version {self._version} stays in use. "
                "Publish them again."
            )
        with torch.no_grad():
            new = rounded_state(held, self._matrices, self._format)
            for name, tensor in own.items():
                tensor.copy_(new[source[name]])
        if not self._decode:
            self._forward, self._decode = fastest_forward(self._model)
        self._version = version

    def sample(self, requests: Sequence[Request], how: Sampling | Greedy) -> list[Sample]:
        """One answer for each request. A row's tokens depend on its own prompt and seed, not on its neighbours, except
        that logits round differently in a batch of another size."""
        if not requests:
            return []
        self._check(requests, how)
        running = self._new_batch()
        for number, request in enumerate(requests):
            running.submit(number, replace(request, order=()), how)
        found: dict[int, Sample] = {}
        while len(running):
            found |= running.step(self._forward, self._version)
        samples = [found[number] for number in range(len(requests))]
        self._refuse_broken(samples)
        return samples

    def submit(self, key: int, request: Request, how: Sampling | Greedy) -> None:
        """Ask for an answer under a name of its own; `step` gives it back when it ended."""
        self._check([request], how)
        self._running.submit(key, request, how)

    def step(self) -> list[tuple[int, Sample]]:
        """One token more of every answer that runs: those that ended, by their names. If it fails, all are lost."""
        try:
            ended = self._running.step(self._forward, self._version)
            self._refuse_broken([sample for _, sample in ended])
        except BaseException:
            self._running = self._new_batch()
            raise
        return ended

    @property
    def started(self) -> Collection[int]:
        """The requests that are being answered; those that wait for a place are not among them."""
        return self._running.started

    def abort(self, keys: Collection[int] | None = None) -> list[tuple[int, Sample]]:
        """Stop these answers, or all of them: the part of each that is there."""
        return self._running.abort(self._version, keys)

    def _new_batch(self) -> Running:
        return Running(device=self._model.device, pad_id=self._pad_id, eos_ids=self._eos_ids, slots=self._max_rows)

    def _check(self, requests: Sequence[Request], how: Sampling | Greedy) -> None:
        if self._version < 0:
            raise EngineError(
                "Embedded.sample: nothing was loaded yet, so there is no policy to sample. Call load first."
            )
        empty = [index for index, request in enumerate(requests) if not request.ids]
        if empty:
            raise EngineError(
                f"Embedded.sample: requests {empty[:8]} of {len(requests)} have no prompt, so there is no token to "
                "continue. Give each prompt at least one token."
            )
        if max(max(request.ids) for request in requests) >= self._vocabulary:
            largest = max(range(len(requests)), key=lambda index: max(requests[index].ids))
            raise EngineError(
                f"Embedded.sample: request {largest} holds id {max(requests[largest].ids)} and the model knows "
                f"{self._vocabulary} ids, so it has no embedding. Use the tokenizer of this model."
            )
        self._check_length(max(len(request.ids) for request in requests), how.max_new_tokens)
        if isinstance(how, Sampling):
            _check_sampling(how)

    def _check_length(self, prompt_tokens: int, new_tokens: int) -> None:
        if new_tokens < 1:
            raise EngineError(
                f"Embedded.sample: max_new_tokens is {new_tokens}, so nothing would be sampled. Ask for 1 or more."
            )
        positions = self._positions or prompt_tokens + new_tokens
        if prompt_tokens + new_tokens > positions:
            raise EngineError(
                f"Embedded.sample: a prompt of {prompt_tokens} tokens and {new_tokens} new ones need more than the "
                f"{positions} positions of the model, so it cannot read its own answer. Shorten one of them."
            )

    def _refuse_broken(self, samples: Sequence[Sample]) -> None:
        """Parameters that are no numbers give log-probs that are none."""
        if not samples:
            return
        logp = torch.cat([sample.logp for sample in samples])
        if not bool(logp.isfinite().all()):
            raise EngineError(
                f"Embedded.sample: {int((~logp.isfinite()).sum())} of {len(logp)} tokens have a log-prob that is not "
                f"finite, so version {self._version} of the parameters is broken. Publish finite parameters."
            )


def _check_sampling(how: Sampling) -> None:
    if not (0 < how.temperature < math.inf):
        raise EngineError(
            f"Embedded.sample: temperature is {how.temperature}, so there is no distribution to draw from. "
            "Use a finite temperature above 0, or Greedy."
        )
    if not 0 < how.top_p <= 1 or how.top_k < 0:
        raise EngineError(
            f"Embedded.sample: top_p is {how.top_p} and top_k is {how.top_k}, so it is not clear which tokens may be "
            "drawn. Set top_p above 0 and at most 1 (1: all), and top_k to 0 (all) or more."
        )


def _sources(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, str]:
    """For each parameter of the engine the name in `state` that fills it: its own, or that of one it is tied to."""
    aliases: dict[tuple[int, torch.Size], list[str]] = {}
    for name, tensor in own.items():
        aliases.setdefault((tensor.data_ptr(), tensor.shape), []).append(name)
    source: dict[str, str] = {}
    for tied in aliases.values():
        given = [name for name in tied if name in state]
        source |= {name: given[0] for name in tied if given}
        if any(not torch.equal(state[name], state[given[0]]) for name in given[1:]):
            raise EngineError(
                f"Embedded.load: {given} are one parameter of the engine's model and differ in the state, so the "
                "engine could hold only one of them. Publish the state_dict of the same model."
            )
    if set(own) != set(source) or set(state) - set(own):
        raise EngineError(
            f"Embedded.load: state lacks {sorted(set(own) - set(source))}, adds {sorted(set(state) - set(own))}"
            ", so it belongs to another model. Publish the state_dict of the same one."
        )
    for name, tensor in own.items():
        if tensor.shape != state[source[name]].shape:
            raise EngineError(
                f"Embedded.load: {name} has shape {tuple(state[source[name]].shape)} where the engine has "
                f"{tuple(tensor.shape)}, so it belongs to another model. Publish the state_dict of the same one."
            )
    return source


def _check_layers(model: "PreTrainedModel") -> None:
    kinds = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise EngineError(
            f"Embedded: {type(model).__name__} has layers of kind {sorted(kinds)}, which remember more than keys and "
            "values, so its rows cannot leave and enter a batch. Use a model with attention layers only."
        )
