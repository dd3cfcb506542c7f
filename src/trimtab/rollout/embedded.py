"""The only place that owns a sampler's parameters in this process: a Hugging Face model, a format, a version.

The trainer reaches it through `load` alone, as it would reach an engine on another machine. It does not know tasks,
rewards or text.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.decode import Answers, decode
from trimtab.rollout.engine import Greedy, Request, Sample, Sampling
from trimtab.rollout.weights import digest as digest_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Embedded:
    """An `Engine` on the CPU or one GPU. Version -1 means that nothing was loaded yet."""

    def __init__(
        self, model: "PreTrainedModel", *, pad_id: int, eos_id: int, format: str = "fp32", max_rows: int = 0
    ) -> None:
        self._model: PreTrainedModel = model.eval().requires_grad_(False)
        self._pad_id: int = pad_id
        self._eos_id: int = eos_id
        self._format: str = format
        self._max_rows: int = max_rows
        self._version: int = -1

    @property
    def version(self) -> int:
        return self._version

    @property
    def dtype(self) -> str:
        return self._format

    def load(self, state: Mapping[str, Tensor], version: int, digest: str) -> None:
        """Take the parameters over. All is checked on a copy before the first changes: a refusal leaves the old ones.

        The checksum is that of the copy, so it speaks of what the engine holds, not of what lies with the publisher.
        """
        if version <= self._version:
            raise StaleWeights(
                f"Embedded.load: version {version} is not newer than {self._version}, so its tokens could not be told "
                "from those of the version in use. Publish with a version that grows."
            )
        own = self._model.state_dict()
        _check_names(own, state)
        held = {name: tensor.detach().clone() for name, tensor in state.items()}
        if (found := digest_of(held)) != digest:
            raise StaleWeights(
                f"Embedded.load: the parameters of version {version} have the checksum {found[:16]}… and their "
                f"publisher says {digest[:16]}…, so they changed on the way; version {self._version} stays in use. "
                "Publish them again."
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(held[name])
        self._version = version

    def sample(self, requests: Sequence[Request], how: Sampling | Greedy) -> list[Sample]:
        """One answer for each request. A row's tokens depend on its own prompt and seed, not on its neighbours, up to
        the float rounding of logits in a batch of another size."""
        if not requests:
            return []
        self._check(requests, how)
        with torch.inference_mode():
            answers = decode(
                self._model, requests, how, pad_id=self._pad_id, eos_id=self._eos_id, max_rows=self._max_rows
            )
        return self._cut(answers, how)

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
        if how.max_new_tokens < 1:
            raise EngineError(
                f"Embedded.sample: max_new_tokens is {how.max_new_tokens}, so nothing would be sampled. Ask for 1."
            )
        if isinstance(how, Sampling) and not how.temperature > 0:
            raise EngineError(
                f"Embedded.sample: temperature is {how.temperature}, so there is no distribution to draw from. "
                "Use a temperature above 0, or Greedy."
            )

    def _cut(self, answers: Answers, how: Sampling | Greedy) -> list[Sample]:
        """Every answer up to and with its first end token."""
        lengths = answers.length.tolist()
        # Out of inference mode, so that the log-probs may meet a gradient.
        logp = answers.logp.cpu()[torch.arange(answers.logp.shape[1]) < answers.length.cpu()[:, None]].split(lengths)
        version = (self._version,) * how.max_new_tokens
        truncates = isinstance(how, Sampling) and how.truncates and bool(answers.support)
        return [
            Sample(
                ids=(own := tuple(ids[:length])),
                logp=logp[row],
                version=version[:length],
                finish="eos" if own[-1] == self._eos_id else "length",
                support=tuple(answers.support[row]) if truncates else None,
            )
            for row, (ids, length) in enumerate(zip(answers.ids.tolist(), lengths, strict=True))
        ]


def _check_names(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
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
