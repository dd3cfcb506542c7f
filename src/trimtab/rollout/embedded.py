"""The only place that samples in this process: a batched sampler with a key-value cache on a Hugging Face model.

It owns its copy of the model; the trainer reaches it through `load` alone, as it would reach an engine on another
machine. It does not know tasks, rewards or text.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.engine import Greedy, Sample, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Embedded:
    """An `Engine` on the CPU or one GPU. Version -1 means that nothing was loaded yet."""

    def __init__(self, model: "PreTrainedModel", *, pad_id: int, eos_id: int) -> None:
        self._model: PreTrainedModel = model.eval().requires_grad_(False)
        self._pad_id: int = pad_id
        self._eos_id: int = eos_id
        self._version: int = -1

    @property
    def version(self) -> int:
        return self._version

    @property
    def dtype(self) -> str:
        return str(next(self._model.parameters()).dtype).removeprefix("torch.")

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Copy the parameters in. All are checked before the first copy, so a refusal leaves the old ones whole."""
        if version <= self._version:
            raise StaleWeights(
                f"Embedded.load: version {version} is not newer than {self._version}, so its tokens could not be told "
                "from those of the version in use. Publish with a version that grows."
            )
        own = self._model.state_dict()
        if set(own) != set(state):
            raise EngineError(
                f"Embedded.load: state lacks {sorted(set(own) - set(state))}, adds {sorted(set(state) - set(own))}"
                ", so it belongs to another model. Publish the state_dict of the same one."
            )
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                raise EngineError(
                    f"Embedded.load: {name} has shape {tuple(state[name].shape)} where the engine has "
                    f"{tuple(tensor.shape)}, so it belongs to another model. Publish the state_dict of the same one."
                )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        self._version = version

    def sample(self, prompts: Sequence[Sequence[int]], how: Sampling | Greedy) -> list[Sample]:
        self._check(prompts, how)
        copies = how.samples_per_prompt if isinstance(how, Sampling) else 1
        with torch.no_grad():
            ids, logp = self._decode(prompts, how, copies)
        return [
            self._cut(tuple(prompts[row // copies]), answer, ids_logp)
            for row, (answer, ids_logp) in enumerate(zip(ids.tolist(), logp, strict=True))
        ]

    def _check(self, prompts: Sequence[Sequence[int]], how: Sampling | Greedy) -> None:
        if self._version < 0:
            raise EngineError(
                "Embedded.sample: nothing was loaded yet, so there is no policy to sample. Call load first."
            )
        if not prompts or not all(prompts):
            raise EngineError(
                f"Embedded.sample: got {len(prompts)} prompts, {sum(not prompt for prompt in prompts)} of them empty, "
                "so there is no token to continue. Give each prompt at least one token."
            )
        if how.max_new_tokens < 1:
            raise EngineError(
                f"Embedded.sample: max_new_tokens is {how.max_new_tokens}, so nothing would be sampled. Ask for 1."
            )
        if isinstance(how, Sampling) and not how.temperature > 0:
            raise EngineError(
                f"Embedded.sample: temperature is {how.temperature}, so there is no distribution to draw from. "
                "Use a temperature above 0, or Greedy."
            )

    def _decode(self, prompts: Sequence[Sequence[int]], how: Sampling | Greedy, copies: int) -> tuple[Tensor, Tensor]:
        """Chosen ids and their log-probs, `[rows, steps]`; what follows a row's end token is meaningless."""
        prompt_ids, attends = self._left_padded(prompts)
        generator = torch.Generator(prompt_ids.device)
        if isinstance(how, Sampling):
            generator.manual_seed(how.seed)
        logits, cache = self._forward(prompt_ids, attends, (attends.cumsum(1) - 1).clamp_min(0), None)
        if copies > 1:  # the samples of a prompt share one pass over it
            cache.batch_repeat_interleave(copies)
            logits, attends = logits.repeat_interleave(copies, 0), attends.repeat_interleave(copies, 0)
        position = attends.sum(1, keepdim=True)
        ids: list[Tensor] = []
        logps: list[Tensor] = []
        finished = torch.zeros(len(attends), dtype=torch.bool, device=attends.device)
        while True:
            chosen, logp = _choose(logits, how, generator)
            ids.append(chosen)
            logps.append(logp)
            finished |= chosen == self._eos_id
            if len(ids) == how.max_new_tokens or bool(finished.all()):
                return torch.stack(ids, 1), torch.stack(logps, 1)
            attends = torch.cat([attends, attends.new_ones(len(attends), 1)], 1)
            logits, cache = self._forward(chosen[:, None], attends, position, cache)
            position = position + 1

    def _left_padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Prompts against the right edge, so that every row's next token falls in the same column."""
        width = max(len(prompt) for prompt in prompts)
        ids = [[self._pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        attends = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self._model.device
        return torch.tensor(ids, device=device), torch.tensor(attends, device=device)

    def _forward(self, ids: Tensor, attends: Tensor, position: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits of the next token, float32 `[rows, vocabulary]`, and the cache that now holds these ids."""
        out = self._model(
            input_ids=ids,
            attention_mask=attends,
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return cast(Tensor, out.logits)[:, -1].float(), out.past_key_values

    def _cut(self, prompt_ids: tuple[int, ...], ids: list[int], logp: Tensor) -> Sample:
        """The answer up to and with its first end token."""
        ended = self._eos_id in ids
        length = ids.index(self._eos_id) + 1 if ended else len(ids)
        return Sample(
            prompt_ids=prompt_ids,
            ids=tuple(ids[:length]),
            logp=logp[:length],
            version=(self._version,) * length,
            finish="eos" if ended else "length",
        )


def _choose(logits: Tensor, how: Sampling | Greedy, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token a row, and its log-prob under the distribution it was drawn from."""
    if isinstance(how, Greedy):
        return logits.argmax(-1), torch.zeros(len(logits), device=logits.device)
    logp = torch.log_softmax(logits / how.temperature, -1)
    chosen = torch.multinomial(logp.exp(), 1, generator=generator)
    return chosen[:, 0], logp.gather(-1, chosen)[:, 0]
