"""What stands between engine and signal: cutting answers, assembling rows, the door, log-probs from logits."""

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from trimtab.rollout.engine import Greedy, Request
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather, join
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.rows import lay_out
from trimtab.rollout.running import Running
from trimtab.sentinel import Case, Out, Result, Subject, scored
from trimtab.sentinel.batch.perturb import without_tokens
from trimtab.signal import SignalBatch
from trimtab.signal.kl import k3
from trimtab.train.logp import _chunked, token_pass


def _bare(case: Case) -> Case:
    """An engine's answers hold no tool output."""
    return without_tokens(case, "o")


def _assembled(case: Case) -> Rollouts:
    ids, logp = case.list("token_id"), case.list("logp_rollout")
    reward, ended = case.sequence("reward"), case.sequence("ended")
    groups: list[Rollouts] = []
    for row, kinds in enumerate(case.kinds):
        start, width = kinds.count("p"), len(ids[row])
        episode = Episode(
            ids=ids[row].long(), trainable=torch.arange(width) >= start, logp=logp[row][start:],
            version=torch.full((width - start,), case.origin[row]), turn=torch.zeros(width - start, dtype=torch.int64),
            ended=bool(ended[row]), reward=float(reward[row]), status="ok",
        )  # fmt: skip
        groups.append(gather(row, "", [episode]))
    return join(groups)


@cache
def assembled() -> Subject:
    """Samples to rows and a batch: every number is still its own token's."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        made = _assembled(case)
        rows = lay_out(made, torch.arange(case.num_sequences), pad_id=case.pad_id)
        trains = torch.zeros(len(rows.ids), rows.ids.shape[1] + case.extra_columns, dtype=torch.bool)
        trains[rows.row_of_token, rows.column_of_token] = True
        batch = made.batch(logp_old=case.flat("logp_old").float(), logp_ref=case.flat("logp_ref").float())
        assert batch.logp_old is not None
        assert batch.logp_ref is not None
        return {
            "logp_rollout": Result(made.logp_rollout, "token", "carried", of="logp_rollout"),
            "logp_old": Result(batch.logp_old, "token", "carried", of="logp_old"),
            "logp_ref": Result(batch.logp_ref, "token", "carried", of="logp_ref"),
            "version": Result(made.version, "token", "carried", of=_row_of_token),
            "reward": Result.sequence(batch.reward, "carried", of="reward"),
            "ended": Result.sequence(batch.ended, "carried", of=lambda c: c.sequences["ended"].double()),
            "mask": Result.cell(case, trains),
        }

    return Subject("assemble", call, adapt=_bare, waived={"mask_content": _TRUSTED, "nonfinite_isolation": _TRUSTED})


_TRUSTED = "an engine's answer is trainable throughout, and its prompt carries no log-probs"


def _row_of_token(case: Case) -> Tensor:
    return torch.tensor(case.origin, dtype=torch.float64)[case.owner][case.trainable]


@cache
def trained_once() -> Subject:
    """How often each sampled token stands in the rows that go through the model."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        made = _assembled(case)
        halves = [list(range(case.num_sequences))[::2], list(range(case.num_sequences))[1::2]]
        count = torch.zeros(made.num_tokens, dtype=torch.float64)
        for half in halves:
            if not half:
                continue
            rows = lay_out(made, torch.tensor(half), pad_id=case.pad_id)
            where = torch.tensor(half)[rows.row_of_token]
            start = torch.tensor([k.count("p") for k in case.kinds])
            place = case.segments.first_token[where] + rows.column_of_token - start[where]
            count = count.index_add(0, place.clamp(0, max(made.num_tokens - 1, 0)), torch.ones(len(place)).double())
        return {"trained": Result(count, "token", "count")}

    return Subject("rows", call, adapt=_bare)


@cache
def cut() -> Subject:
    """The engine's cut at the end token, as the mask of what trains."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        width = max(case.response_lengths, default=0) + case.extra_columns
        mask = torch.zeros(case.num_sequences, width)
        for row, ids in enumerate(case.list("token_id", with_prompt=False)):
            own = [int(i) for i in ids]
            # A row that ended goes on with whatever the engine feeds it until the longest one is done.
            own += [case.pad_id] * (width - len(own)) if bool(case.sequence("ended")[row]) else []
            mask[row, : _answer_length(own, tuple(case.eos_ids))] = 1
        return {"mask": Result.cell(case, mask, with_prompt=False)}

    return Subject("cut", call, adapt=_bare)


def _answer_length(ids: list[int], eos_ids: tuple[int, ...]) -> int:
    """How long the engine takes an answer to be whose logits dictate these ids."""
    if not ids:
        return 0
    script = iter(ids)

    def forward(*_: object) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor([next(script)]), max(*ids, *eos_ids) + 1).float()

    running = Running(device=torch.device("cpu"), pad_id=0, eos_ids=eos_ids, slots=0)
    running.submit(0, Request((0,), 0), Greedy(len(ids)))
    while not (done := running.step(forward, 0)):
        pass
    return len(done[0][1].ids)


@cache
def door(*, after: str = "kl") -> Subject:
    """What the door lets in: fields of a padded batch, and the KL made of them."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        fields = {n: case.padded(n) for n in ("logp_old", "logp_ref")}
        batch = SignalBatch.from_padded(
            case.padded("trainable"), reward=case.sequence("reward"), group=case.sequence("group"), **fields
        )
        assert batch.logp_old is not None
        assert batch.logp_ref is not None
        if after == "kl":
            return {"kl": Result(k3(batch.logp_old, batch.logp_ref), "token", "kl")}
        return {
            "logp_old": Result(batch.logp_old, "token", "carried", of="logp_old"),
            "logp_ref": Result(batch.logp_ref, "token", "carried", of="logp_ref"),
            "reward": Result.sequence(batch.reward, "carried", of="reward"),
        }

    return Subject(f"door({after})", call)


class _Head:
    """An output head that passes its states on."""

    def __init__(self, size: int) -> None:
        self.weight = torch.empty(size, 0)

    def __call__(self, states: Tensor) -> Tensor:
        return states


class _Model:
    """A model whose hidden states are the case's logits and whose head passes them on."""

    device = torch.device("cpu")

    def __init__(self, hidden: Tensor | None, size: int) -> None:
        self.hidden = hidden
        self.size = size

    def base_model(self, *, input_ids: Tensor, use_cache: bool) -> Any:
        assert self.hidden is not None
        return SimpleNamespace(last_hidden_state=self.hidden[:, : input_ids.shape[1]])

    def get_output_embeddings(self) -> Any:
        return _Head(self.size)


@cache
def from_logits(*, chunk: int = 1000, twin: bool = False, defined: bool = True) -> Subject:
    """Log-probs and entropies of trainable tokens from their logits, in one chunk or several."""

    def call(case: Case, options: Mapping[str, Any], chunk: int = chunk) -> Out:
        logits = case.flat("logits")
        model: Any = _Model(None, logits.shape[-1])
        held = 4 * chunk * logits.shape[-1]
        logp, entropy = _chunked(
            model.get_output_embeddings(), logits, case.flat("token_id"), options["temperature"], held, None, True
        )
        return {"logp": Result(logp, "token", "logp"), "entropy": Result(entropy, "token", "entropy")}

    return Subject(
        "from_logits", call, options={"temperature": 0.7}, couples="token",
        definition=scored(temperature="temperature") if defined else None,
        twin=(lambda case, options: call(case, options, 1000)) if twin else None,
    )  # fmt: skip


@cache
def passed() -> Subject:
    """`token_pass` over assembled rows: log-probs with their shift, and the states a critic reads."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if not case.segments.num_tokens:
            raise case.cannot("nothing trains")
        rows = lay_out(_assembled(case), torch.arange(case.num_sequences), pad_id=case.pad_id)
        logits = case.logits(side="right")
        out = token_pass(
            _Model(logits, logits.shape[-1]),
            rows,
            with_state=True,
            entropy_graph=True,
            **options,  # type: ignore[arg-type]
        )
        return {
            "logp": Result(out.logp, "token", "logp"), "entropy": Result(out.entropy, "token", "entropy"),
            "value": Result(out.state.sum(-1), "token", "value"),
        }  # fmt: skip

    return Subject(
        "token_pass", call, options={"temperature": 0.7}, adapt=_bare, definition=scored(temperature="temperature")
    )
