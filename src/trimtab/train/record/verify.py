"""The only place that holds the batches which a run dumped to invariants of alignment and masks. No model runs.

A batch is put together from an engine's answers, prompts and what environments said. Here the result is read as data:
does exactly what was sampled train, does each number stand at its own token, and is each version what it says.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import ConfigError
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.seal import FIELD, seal_tokens
from trimtab.train.record.identity import read_json
from trimtab.train.record.replay import Dump, read_dump

LAGS = (-2, -1, 1, 2)
FEWEST = 64
"""Tokens in a batch below which a shift is not looked for: chance alone could then favour it."""


@dataclass(frozen=True)
class Fault:
    """One invariant that a batch breaks, at the first sequence that does."""

    step: int
    invariant: str
    text: str


@dataclass(frozen=True)
class Look:
    """What an invariant may read: a batch, the run's staleness, and the ids that close a turn."""

    dump: Dump
    staleness: int
    ends: frozenset[int]

    @property
    def rollouts(self) -> Rollouts:
        return self.dump.rollouts


@dataclass(frozen=True)
class Verified:
    """What was looked at and what was found."""

    steps: tuple[int, ...]
    sequences: int
    tokens: int
    faults: tuple[Fault, ...]
    skipped: tuple[str, ...]
    """Invariants that no batch could exercise."""


Invariant = Callable[[Look], Iterator[str] | None]
"""Sentences about what is broken; None where the batch does not hold what it needs."""


def exactly_once(look: Look) -> Iterator[str] | None:
    """Exactly the tokens that the engine drew are trainable, each with its own log-prob and version."""
    sealed = look.rollouts.extra.get("sequence", {}).get(FIELD)
    if sealed is None:
        return None
    return _seals(look.rollouts, sealed)


def _seals(rollouts: Rollouts, sealed: Tensor) -> Iterator[str]:
    ids = rollouts.ids[rollouts.trainable]
    for row, span in _rows(rollouts):
        found = seal_tokens(ids[span], rollouts.logp_rollout[span], rollouts.version[span], rollouts.turn[span])
        if found != int(sealed[row]):
            yield (
                f"sequence {row}: its trainable tokens, log-probs and versions are not those that the engine drew, so "
                "it trains on something that nobody sampled"
            )


def turns(look: Look) -> Iterator[str]:
    """A turn is one run of tokens; whatever stands between two of them, and before the first, does not train."""
    rollouts = look.rollouts
    position, ids = rollouts.position, rollouts.ids[rollouts.trainable]
    for row, span in _rows(rollouts):
        place, turn = position[span].long(), rollouts.turn[span].long()
        same = turn.diff() == 0
        if bool((turn.diff() < 0).any()) or int(turn[0]) != 0 or bool((turn.diff() > 1).any()):
            yield f"sequence {row}: its turns are {turn.unique_consecutive().tolist()}, so one is lost or out of order"
        elif bool((place.diff()[same] != 1).any()):
            yield f"sequence {row}: a turn is interrupted, so a token of an environment or a gap lies inside of it"
        elif int(place[0]) == 0:
            yield f"sequence {row}: its first token is trainable, so the prompt trains or is lost"
        elif int(place[-1]) + 1 != int(rollouts.length[row]):
            yield f"sequence {row}: tokens follow the last turn, so the end of an answer does not train"
        else:
            yield from _closed(row, ids[span], same, ended=bool(rollouts.ended[row]), ends=look.ends)


def _closed(row: int, ids: Tensor, same: Tensor, *, ended: bool, ends: frozenset[int]) -> Iterator[str]:
    """The end token closes a turn: it stands nowhere else among trainable tokens, and at the end if one ended."""
    is_end = torch.isin(ids.long(), torch.tensor(sorted(ends)))
    if ends and bool((is_end[:-1] & same).any()):
        yield f"sequence {row}: a turn goes on behind its end token, so tokens train that come after the answer"
    if ends and ended != bool(is_end[-1]):
        said = "ended" if ended else "was cut off"
        yield f"sequence {row}: it {said} and its last trainable token is {int(ids[-1])}, so the mask or the end is off"


def group_prompt(look: Look) -> Iterator[str]:
    """All sequences of a group continue the same prompt; otherwise their rewards cannot be compared."""
    rollouts = look.rollouts
    first: dict[int, tuple[int, Tensor]] = {}
    tickets = cast("list[int]", rollouts.ticket[rollouts.episode.long()].tolist())
    position = rollouts.position
    for row, span in _rows(rollouts):
        start = int(rollouts.first_id[row])
        prompt = rollouts.ids[start : start + int(position[span.start])]
        other, known = first.setdefault(tickets[row], (row, prompt))
        if not torch.equal(prompt, known):
            yield (
                f"sequences {other} and {row} have ticket {tickets[row]} and prompts of {len(known)} and {len(prompt)} "
                "tokens that differ, so they do not compare answers to one question"
            )


def alignment(look: Look) -> Iterator[str] | None:
    """The engine's log-probs fit the trainer's at the same token better than one or two tokens away."""
    old = look.dump.fields.get("logp_old", look.dump.fields.get("logp_current"))
    rollouts = look.rollouts
    spans = [span for _, span in _rows(rollouts)]
    if old is None or sum(span.stop - span.start for span in spans) < FEWEST:
        return None
    return _shifts(rollouts.logp_rollout.double(), old.double(), spans)


def _shifts(engine: Tensor, trainer: Tensor, spans: list[slice]) -> Iterator[str]:
    def apart(lag: int) -> float:
        pairs = [(engine[s], trainer[s]) for s in spans if s.stop - s.start > abs(lag)]
        gaps = [e[max(0, -lag) : len(e) - max(0, lag)] - t[max(0, lag) : len(t) + min(0, lag)] for e, t in pairs]
        return float(torch.cat(gaps).abs().mean()) if gaps else float("inf")

    here, by_lag = apart(0), {lag: apart(lag) for lag in LAGS}
    best = min(by_lag, key=by_lag.__getitem__)
    if by_lag[best] < here:
        yield (
            f"the engine's log-probs differ from the trainer's by {here:.3g} per token, and by {by_lag[best]:.3g} if "
            f"they are moved by {best} tokens, so they stand at the wrong tokens"
        )


def versions(look: Look) -> Iterator[str]:
    """A token was chosen by parameters that existed, at most `staleness` updates old; later tokens by no older ones."""
    rollouts, step = look.rollouts, look.dump.step
    for row, span in _rows(rollouts):
        version = rollouts.version[span].long()
        oldest, newest = int(version.min()), int(version.max())
        if newest > step:
            yield f"sequence {row}: version {newest} sampled it and step {step} trains it, so it comes from the future"
        elif oldest < step - look.staleness:
            yield f"sequence {row}: version {oldest} is {step - oldest} updates old and at most {look.staleness} may be"
        elif bool((version.diff() < 0).any()):
            yield f"sequence {row}: its versions go back from {newest} to {oldest}, so tokens are out of order"


def outcomes(look: Look) -> Iterator[str]:
    """An episode has a reward if and only if it came out ok."""
    rollouts = look.rollouts
    wrong = (rollouts.reward.isfinite() != rollouts.scored).nonzero()[:, 0]
    for episode in cast("list[int]", wrong.tolist()):
        yield f"episode {episode}: its reward is {float(rollouts.reward[episode]):g} and its status says otherwise"


INVARIANTS: dict[str, Invariant] = {
    "exactly_once": exactly_once,
    "turns": turns,
    "group_prompt": group_prompt,
    "alignment": alignment,
    "versions": versions,
    "outcomes": outcomes,
}


def _rows(rollouts: Rollouts) -> Iterator[tuple[int, slice]]:
    """Each sequence whose episode has a reward and which has tokens that train, and where they stand."""
    first = cast("list[int]", rollouts.first_token.tolist())
    scored = cast("list[bool]", rollouts.scored[rollouts.episode.long()].tolist())
    for row, is_scored in enumerate(scored):
        if is_scored and first[row + 1] > first[row]:
            yield row, slice(first[row], first[row + 1])


def verify(dumps: Iterable[Dump], *, staleness: int, ends: frozenset[int] = frozenset()) -> Verified:
    """Hold batches to every invariant. Of each, the first sentence per step is kept."""
    steps, sequences, tokens, faults, exercised = list[int](), 0, 0, list[Fault](), set[str]()
    for dump in dumps:
        steps.append(dump.step)
        sequences, tokens = sequences + dump.rollouts.num_sequences, tokens + dump.rollouts.num_tokens
        for name, invariant in INVARIANTS.items():
            found = invariant(Look(dump, staleness, ends))
            exercised |= {name} if found is not None else set[str]()
            faults += [Fault(dump.step, name, text) for text in [next(found or iter(()), None)] if text is not None]
    skipped = tuple(name for name in INVARIANTS if name not in exercised)
    return Verified(tuple(steps), sequences, tokens, tuple(faults), skipped)


def verify_run(folder: Path) -> Verified:
    """Hold every batch that a run dumped."""
    config: dict[str, Any] = read_json(folder / "config.json")
    numbers = sorted(int(path.stem.removeprefix("step_")) for path in folder.glob("batches/step_*.safetensors"))
    if not numbers:
        raise ConfigError(
            f"check: {folder} holds no batches, so there is nothing to hold to the invariants. Train with "
            "train.dump_batches=true."
        )
    dumps = (read_dump(folder, number) for number in numbers)
    return verify(dumps, staleness=int(config.get("staleness", 0)), ends=_ends(folder))


def _ends(folder: Path) -> frozenset[int]:
    """The ids that close a turn, as the run wrote them down; none if it did not."""
    manifest: dict[str, Any] = read_json(folder / "manifest.json") if (folder / "manifest.json").is_file() else {}
    return frozenset(int(number) for number in manifest.get("eos_ids", ()))
