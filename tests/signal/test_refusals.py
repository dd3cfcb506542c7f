"""Bad input gets a clear error: each malformed batch, recipe and call is refused with a sentence of its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fork import run_in_fork

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import KL, SignalBatch, Stage, Term, decide, part, prepare, recipe, step, token_loss
from trimtab.signal.reward import clip

NAN = float("nan")


def good(**changes: Any) -> dict[str, Any]:
    """A padded batch of two rows that every check passes; `changes` breaks one thing."""
    given: dict[str, Any] = {
        "trainable": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "reward": torch.tensor([1.0, 0.0]),
        "group": torch.tensor([0, 0]),
        "logp_old": torch.full((2, 3), -0.5),
        "logp_rollout": torch.full((2, 3), -0.5),
    }
    return {**given, **changes}


def build(**changes: Any) -> SignalBatch:
    given = good(**changes)
    return SignalBatch.from_padded(given.pop("trainable"), **given)


def with_cell(row: int, column: int, value: float) -> torch.Tensor:
    values = torch.full((2, 3), -0.5)
    values[row, column] = value
    return values


BATCHES: dict[str, tuple[Callable[[], object], str]] = {
    "nan log-prob": (
        lambda: build(logp_rollout=with_cell(1, 2, NAN)),
        r"logp_rollout is nan at 1 trainable tokens \(first: token 2 of sequence 1\)",
    ),
    "infinite log-prob": (
        lambda: build(logp_old=with_cell(0, 1, float("-inf"))),
        r"logp_old is -inf at 1 trainable tokens \(first: token 1 of sequence 0\)",
    ),
    "positive log-prob": (
        lambda: build(logp_old=with_cell(0, 0, 0.5)),
        r"logp_old is 0.5 at token 0 of sequence 0, and a log-prob is never above 0",
    ),
    "half precision": (
        lambda: build(logp_old=torch.full((2, 3), -0.5, dtype=torch.bfloat16)),
        "logp_old is bfloat16, so differences of log-probs round away",
    ),
    "integer log-probs": (lambda: build(logp_old=torch.full((2, 3), -1)), "logp_old holds torch.int64, not floats"),
    "wrong shape": (
        lambda: build(logp_old=torch.full((2, 4), -0.5)),
        r"logp_old has shape \[2, 4\] but trainable has \[2, 3\]",
    ),
    "reward as a column": (lambda: build(reward=torch.ones(2, 1)), r"reward has shape \[2, 1\] and group \[2\]"),
    "reward of another length": (lambda: build(reward=torch.ones(3)), r"reward has shape \[3\] and group \[2\]"),
    "nan reward": (lambda: build(reward=torch.tensor([NAN, 1.0])), r"reward is nan at episode 0 \(1 in all\)"),
    "float groups": (
        lambda: build(group=torch.tensor([0.0, 0.0])),
        r"group: holds float32 \(0.0 at 0\), and it counts or names things",
    ),
    "soft mask": (
        lambda: build(trainable=torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]])),
        r"trainable: is 0.5 at \[0, 1\], so it is neither in nor out",
    ),
    "flat mask for padded": (
        lambda: build(trainable=torch.ones(6)),
        r"trainable has shape \[6\], so its layout cannot be told",
    ),
    "unknown field": (
        lambda: build(logp_olld=torch.zeros(2, 3)),
        r"has no field 'logp_olld' \(did you mean 'logp_old'\?\)",
    ),
    "more sequences than rewards": (
        lambda: build(reward=torch.ones(1), group=torch.zeros(1, dtype=torch.long)),
        "there are 1 rewards for 2 sequences",
    ),
    "scored of another length": (
        lambda: build(scored=torch.ones(3, dtype=torch.bool)),
        r"scored has shape \[3\] for 2 episodes",
    ),
    "ended of another length": (
        lambda: build(ended=torch.ones(3, dtype=torch.bool)),
        r"ended has shape \[3\] for 2 sequences",
    ),
    "ended by an unknown word": (lambda: build(ended="guess"), "ended = 'guess' cannot be read"),
    "sequence ids that repeat": (
        lambda: build(sequence_id=torch.tensor([4, 4])),
        "sequence_id names two sequences alike",
    ),
    "reward before any action": (
        lambda: build(
            trainable=torch.tensor([[0, 1, 1], [1, 1, 1]]),
            attention=torch.ones(2, 3),
            token_reward=torch.tensor([[1.0, 0, 0], [0, 0, 0]]),
        ),
        "token_reward is 1.0 at cell 0, before the first trainable token",
    ),
    "token reward without attention": (
        lambda: build(token_reward=torch.zeros(2, 3)),
        "token_reward on padded rows needs the attention mask",
    ),
    "attention of another shape": (
        lambda: build(ended="shorter_than_row", attention=torch.ones(2, 6)),
        r"attention has shape \[2, 6\] but trainable has \[2, 3\]",
    ),
    "attention of a list": (
        lambda: SignalBatch.from_list(
            [torch.ones(2)], reward=torch.ones(1), group=torch.zeros(1, dtype=torch.long), attention=[torch.ones(2)]
        ),
        "attention tells padding in padded rows",
    ),
    "two precisions": (
        lambda: build(logp_old=torch.full((2, 3), -0.5, dtype=torch.float64)),
        r"fields differ in precision \(logp_old float64, logp_rollout float32\)",
    ),
    "a soft finish": (lambda: build(ended=torch.tensor([0.5, 1.0])), r"ended: is 0.5 at \[0\]"),
    "a score that is nan": (lambda: build(scored=torch.tensor([NAN, 1.0])), r"scored: is nan at \[0\]"),
    "token reward in another layout": (
        lambda: build(token_reward=torch.zeros(3, 2)),
        r"token_reward has shape \[3, 2\] but trainable has \[2, 3\]",
    ),
    "extra field with nan": (lambda: build(extra={"gate": with_cell(0, 0, NAN)}), "gate is nan at 1 trainable tokens"),
    "list of unequal lengths": (
        lambda: SignalBatch.from_list(
            [torch.ones(2), torch.ones(3)],
            reward=torch.ones(2),
            group=torch.zeros(2, dtype=torch.long),
            logp_old=[torch.zeros(2), torch.zeros(2)],
        ),
        r"logp_old does not match trainable at entry 1 \(lengths \[2\] and \[3\]\)",
    ),
    "list entries that are matrices": (
        lambda: SignalBatch.from_list([torch.ones(2, 2)], reward=torch.ones(1), group=torch.zeros(1, dtype=torch.long)),
        r"trainable\[0\] has shape \[2, 2\]",
    ),
    "list field for a tensor": (
        lambda: build(logp_old=[torch.zeros(3), torch.zeros(2)]),
        "logp_old: cannot be read as numbers",
    ),
    "boundaries that do not cover": (
        lambda: SignalBatch.from_packed(
            torch.ones(5), torch.tensor([0, 2, 4]), reward=torch.ones(2), group=torch.zeros(2, dtype=torch.long)
        ),
        r"cu_seqlens is \[0, 2, 4\] for a packed row of 5 tokens",
    ),
}


@pytest.mark.parametrize(("make", "message"), BATCHES.values(), ids=BATCHES)
def test_a_malformed_batch_is_refused_with_its_own_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SignalError, match=message):
        make()


TRUNCATED = part("importance.truncated")
ENGINE = Stage(TRUNCATED, ratio="engine")
RECIPES: dict[str, tuple[Callable[[], object], str]] = {
    "unknown recipe": (lambda: recipe("daapo"), r"no entry is called 'daapo'; did you mean 'dapo'\?"),
    "unknown field": (
        lambda: recipe("dapo", beta=0.1),
        r"recipe 'dapo': has no field 'beta' \(in TRL 'beta' is our 'signal.kl.coef'",
    ),
    "unknown formula": (
        lambda: part("policy_loss.cliped"),
        r"no entry is called 'policy_loss.cliped'; did you mean 'policy_loss.clipped'\?",
    ),
    "unknown setting": (
        lambda: part("policy_loss.clipped", clip_high=0.3),
        r"has no setting \['clip_high'\]; it takes \['band'\]",
    ),
    "missing setting": (
        lambda: part("weighting.constant_divisor"),
        r"setting \['divisor'\] has no default; Settings in use: Dr.GRPO",
    ),
    "band upside down": (
        lambda: part("policy_loss.clipped", band=(1.2, 0.8)),
        r"band = \(1.2, 0.8\) is not possible: a band is \(low, high\)",
    ),
    "band as offsets": (
        lambda: part("policy_loss.clipped", band=(0.2, 0.28)),
        r"not offsets from 1, and holds the ratio 1; clip 0.2 / 0.28 is \(0.8, 1.28\)",
    ),
    "a recipe in capitals": (lambda: recipe("DAPO"), r"no entry is called 'DAPO'; did you mean 'dapo'"),
    "band of the wrong type": (lambda: part("policy_loss.clipped", band="0.2"), "band = '0.2' is not possible"),
    "negative bound": (lambda: part("keep.veto", low=-1.0), "low = -1.0 is not possible: it must be above 0"),
    "fraction above one": (
        lambda: part("advantage.gae", gamma=1.5),
        r"gamma = 1.5 is not possible: it must lie in \[0, 1\]",
    ),
    "unknown choice": (lambda: part("importance.truncated", level="turn"), "level = 'turn' is not possible"),
    "module that is not there": (lambda: part("nowhere.loss"), "'nowhere.loss' cannot be imported"),
    "function without declaration": (lambda: part("outside_formulas.undecorated"), "without @trimtab.formula"),
    "stage without its pair": (
        lambda: Stage(TRUNCATED),
        r"importance.truncated: needs ratio \(engine, update or total\)",
    ),
    "pair without a use": (
        lambda: Stage(part("policy_loss.reinforce"), anchor="old"),
        "compares no such pair; leave anchor out",
    ),
    "engine counted twice": (
        lambda: recipe("tis", correction=(ENGINE, ENGINE)),
        "already carries old/rollout and .* would count that factor twice",
    ),
    "update counted twice": (
        lambda: recipe("tis", correction=(Stage(TRUNCATED, ratio="update"),)),
        "already carries current/old",
    ),
    "old that is absent": (
        lambda: recipe("reinforce_tis", correction=(ENGINE,)),
        "old = 'absent' but .* compares with the old policy",
    ),
    "absent old with a KL in the reward": (
        lambda: recipe("reinforce_tis", kl=KL(part("kl.k1"), 0.1, "sequence_reward")),
        "old = 'absent', and a KL in the reward or anchored",
    ),
    "token KL that acts nowhere": (
        lambda: recipe("tis", kl=KL(part("kl.k1"), 0.1, "token_reward")),
        "which reads no token rewards, so the penalty would act nowhere",
    ),
    "weighted KL in a reward": (
        lambda: recipe("ppo", kl=KL(part("kl.importance_weighted_k3"), 0.1, "token_reward", anchor="rollout")),
        "reweights a gradient and has none in a reward",
    ),
    "anchor on a plain KL": (
        lambda: recipe("tis", kl=KL(part("kl.k3"), 0.1, "loss", anchor="old")),
        "only a KL that reads the policy which sampled has an anchor",
    ),
    "zero with a merged KL": (lambda: recipe("rloo", not_ended="zero"), "has merged the two before"),
    "value without a target": (
        lambda: recipe("tis", value=Term(0.5, part("value_loss.squared"))),
        "makes no value target",
    ),
    "token importance on a sequence gradient": (
        lambda: recipe("gspo", correction=(ENGINE,)),
        "tokens would leak weight into one another",
    ),
    "a loss as a correction": (
        lambda: recipe("reinforce", correction=(Stage(part("policy_loss.clipped_importance"), anchor="rollout"),)),
        "correction holds policy_loss.clipped_importance, which is a policy_loss formula",
    ),
    "an importance as a loss": (
        lambda: recipe("reinforce", loss=Stage(TRUNCATED, ratio="total")),
        "loss holds importance.truncated, which is an? importance formula",
    ),
    "a KL that rewards leaving": (
        lambda: recipe("grpo", kl=KL(part("kl.k3"), -0.5, "loss")),
        r"kl: coef = -0.5 is not possible. The term would pull the wrong way",
    ),
    "a coefficient that is nan": (lambda: recipe("tis", entropy=Term(NAN)), "term: coef = nan is not possible"),
    "an advantage clipped to nothing": (lambda: recipe("tis", clip_advantage=-1.0), "clip_advantage = -1.0"),
    "delta that is nan": (
        lambda: part("keep.negative_drift", delta=NAN),
        "delta = nan is not possible: nothing compares",
    ),
    "negative eps": (lambda: part("normalize.mean_std", eps=-1.0), "eps = -1.0 is not possible: it must be 0 or more"),
    "value term without formula": (lambda: recipe("ppo", value=Term(0.5)), "the value term names no formula"),
    "entropy term with a formula": (
        lambda: recipe("tis", entropy=Term(0.1, part("value_loss.squared"))),
        "the entropy term takes no formula",
    ),
    "kept tokens of a reward": (
        lambda: recipe("ppo", kl=KL(part("kl.k1"), 0.1, "token_reward", on="kept")),
        "kl.on = 'kept' chooses tokens of the loss",
    ),
    "weighted KL against an absent old": (
        lambda: recipe("deepseek_v32", kl=KL(part("kl.importance_weighted_k3"), 0.1, "loss", anchor="old")),
        "a KL in the reward or anchored at old needs the old policy",
    ),
    "reward clip upside down": (lambda: clip(torch.ones(2), low=2.0, high=1.0), "low = 2.0 is not below high = 1.0"),
    "promise nobody tests": (
        lambda: trimtab.formula(source="", scope="token", promises=("is_nice",))(lambda x: x),
        "are not known, so nothing would test them",
    ),
}


@pytest.mark.parametrize(("make", "message"), RECIPES.values(), ids=RECIPES)
def test_a_recipe_without_a_meaning_is_refused_with_its_own_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SignalError, match=message):
        make()


def prepared_tis() -> trimtab.signal.Prepared:
    return prepare(build(), recipe("tis"))[0]


def micro_tis(**changes: Any) -> trimtab.signal.MicroBatch:
    (micro,) = decide(next(prepare(build(), recipe("tis", **changes))[0].updates(1))).split(num=1)
    return micro


def one_call(logp: torch.Tensor) -> object:
    given = good()
    return trimtab.loss(logp.requires_grad_(), recipe="tis", mask=given.pop("trainable"), **given)


def outside(name: str) -> object:
    return token_loss(micro_tis(loss=Stage(part(f"outside_formulas.{name}"))), torch.zeros(5))


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "recipe needs what the batch has not": (
        lambda: prepare(build(logp_rollout=None), recipe("tis")),
        "needs logp_rollout, which the batch does not carry",
    ),
    "lone answers": (
        lambda: prepare(build(group=torch.tensor([0, 1])), recipe("tis")),
        r"mean_std: episodes \[0, 1\] are alone in their group",
    ),
    "lone answers, leave one out": (
        lambda: prepare(build(group=torch.tensor([0, 1]), logp_ref=torch.full((2, 3), -0.5)), recipe("rloo")),
        r"leave_one_out: episodes \[0, 1\] are alone",
    ),
    "token rewards that nobody reads": (
        lambda: prepare(build(attention=torch.ones(2, 3), token_reward=torch.ones(2, 3)), recipe("tis")),
        "carries token_reward but advantage.broadcast reads none",
    ),
    "cut off without a value": (
        lambda: prepare(
            build(value_old=torch.zeros(2, 3), logp_ref=torch.full((2, 3), -0.5), ended=torch.tensor([True, False])),
            recipe("ppo"),
        ),
        r"gae: sequences \[1\] did not end by themselves and have no finite value_after",
    ),
    "advantages that vary under a sequence gradient": (
        lambda: prepare(build(), recipe("gspo", advantage=part("advantage.reward_to_go", gamma=0.5))),
        r"the advantage varies inside sequences \[0, 1\]",
    ),
    **{
        f"advantages that vary under {name}": (
            lambda name=name: prepare(
                build(), recipe("gspo", loss=name, advantage=part("advantage.reward_to_go", gamma=0.5))
            ),
            rf"the advantage varies inside sequences \[0, 1\], but policy_loss\.{name} shares",
        )
        for name in ("geometric_of_clipped", "geometric_soft_gated")
    },
    "too many updates": (lambda: list(prepared_tis().updates(2)), "2 optimiser steps from 1 groups that train"),
    "a second step with old = current": (
        lambda: list(prepare(build(group=torch.tensor([0, 0])), recipe("tis", old="current"))[0].updates(2)),
        "follows the policy from step to step",
    ),
    "probabilities for log-probs": (
        lambda: one_call(torch.full((2, 3), 0.4)),
        "logp is 0.4 at token 0 of sequence 0, and a log-prob is never above 0",
    ),
    "nan in the current log-probs": (
        lambda: one_call(torch.full((2, 3), NAN)),
        "loss: logp is nan at 5 trainable tokens",
    ),
    "a loss that takes the mean": (lambda: outside("averaged"), r"returned \[\] where one number per token is due"),
    "a loss without observations": (lambda: outside("bare"), "returned Tensor, not"),
    "unknown togetherness": (lambda: list(prepared_tis().updates(1, together="row")), "together = 'row'"),
    "an extra field that takes the advantage's place": (
        lambda: prepare(build(extra={"advantage": torch.ones(2, 3)}), recipe("tis")),
        r"extra names \['advantage'\], which the pipeline makes itself",
    ),
    "split into nothing": (
        lambda: list(decide(next(prepared_tis().updates(1))).split(num=0)),
        "split: num = 0 is not possible",
    ),
    "split by nothing": (
        lambda: list(decide(next(prepared_tis().updates(1))).split()),
        "name one of max_tokens, num and parts",
    ),
    "rank that does not exist": (
        lambda: decide(next(prepared_tis().updates(1))).shard(2, 2),
        "rank 2 of 2 does not exist",
    ),
    "log-probs of another length": (
        lambda: token_loss(micro_tis(), torch.zeros(4)),
        r"logp_current has shape \[4\] for 5 trainable tokens",
    ),
    "log-probs in half precision": (
        lambda: token_loss(micro_tis(), torch.zeros(5, dtype=torch.bfloat16)),
        "logp_current is bfloat16, so differences of log-probs round",
    ),
    "entropy term without entropy": (
        lambda: token_loss(micro_tis(entropy=Term(0.01)), torch.zeros(5)),
        "has a term on entropy, which was not given",
    ),
    "a step of nothing": (lambda: step([]), "there is no micro-batch"),
    "loss with another mask": (
        lambda: trimtab.loss(
            torch.zeros(2, 2),
            recipe="start_on_policy",
            mask=torch.ones(2, 3),
            reward=torch.ones(2),
            group=torch.zeros(2, dtype=torch.long),
        ),
        r"logp has shape \[2, 2\] and mask \[2, 3\]",
    ),
    "unknown input of an outside formula": (
        lambda: prepare(
            build(), recipe("tis", correction=(Stage(part("outside_formulas.wants_too_much"), ratio="engine"),))
        ),
        r"reads \['temperature_field'\], which is not there when a keep formula runs",
    ),
    "a metric nobody declared": (
        lambda: trimtab.signal.metric_spec("made/up_name"),
        "no entry is called 'made/up_name'",
    ),
}


@pytest.mark.parametrize(("make", "message"), CALLS.values(), ids=CALLS)
def test_a_call_that_makes_no_sense_is_refused_with_its_own_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SignalError, match=message):
        make()


def test_the_refusals_are_distinct() -> None:
    messages = [message for _, message in (*BATCHES.values(), *RECIPES.values(), *CALLS.values())]
    assert len(set(messages)) == len(messages) >= 30


UNTYPED = """
import torch, trimtab
from trimtab.signal import SignalBatch, prepare, token_loss

def refused(make):
    try:
        make()
    except ValueError as error:
        print(error)

mask, group = torch.ones(2, 3), torch.tensor([0, 0])
logp = torch.full((2, 3), -0.5)
batch = SignalBatch.from_padded(mask, reward=[1.0, 0.0], group=[7, 7], logp_old=logp, logp_rollout=logp)
refused(lambda: SignalBatch.from_padded(mask, reward=["good", "bad"], group=group))
refused(lambda: token_loss(next(prepare(batch, "tis")[0].updates(1)), torch.zeros(6)))
refused(lambda: trimtab.loss(logp, recipe=None, mask=mask, reward=[1.0, 0.0], group=group))
refused(lambda: trimtab.formula(source="", scope="tokn", promises=())(lambda x: x))
"""


def test_callers_without_types_are_told_too() -> None:
    """Where no type checker stands before our own messages; lists are read as numbers."""
    said = run_in_fork(UNTYPED).splitlines()
    assert "reward: cannot be read as numbers (entry 0 is 'good')" in said[0]
    assert "takes a micro-batch, not Update. First decide(update)" in said[1]
    assert "recipe is NoneType; give a name" in said[2]
    assert "scope: no entry is called 'tokn'; did you mean 'token'?" in said[3]


def test_a_sequence_without_tokens_varies_in_nothing() -> None:
    batch = SignalBatch.from_tokens([2, 1, 0], reward=[1.0, 0.0, 2.0], group=[0, 0, 0], logp_old=torch.full((3,), -1.0))
    prepared, _ = prepare(batch, recipe("gspo"), advantage=torch.tensor([1.0, 1.0, -2.0]))
    assert prepared.advantage.tolist() == [1.0, 1.0, -2.0]
    with pytest.raises(SignalError, match=r"varies inside sequences \[0\]"):
        _ = prepare(batch, recipe("gspo"), advantage=torch.tensor([1.0, 2.0, -2.0]))
