"""What a formula may read, and when: each stage is handed what INPUTS promises, and decisions are seen once."""

from typing import Any

import pytest
import torch
from tests.signal.test_pipeline import door, samples

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, Stage, decide, part, prepare, recipe, step, token_loss
from trimtab.signal.catalogue import INPUTS
from trimtab.signal.parts import run
from trimtab.signal.update import select

F64 = torch.float64


def batch(**changes: Any) -> SignalBatch:
    """Two prompts, two answers each, of 4 tokens; every optional field is there."""
    generator = torch.Generator().manual_seed(0)
    old = -0.1 - torch.rand(4, 4, generator=generator, dtype=F64)
    given: dict[str, Any] = {
        "reward": [1.0, 0.0, 0.25, 1.0], "group": [0, 0, 1, 1], "logp_old": old, "logp_rollout": old - 0.01,
        "logp_ref": old - 0.1, "value_old": old, "ended": [True] * 4, "value_after": torch.zeros(4, dtype=F64),
        "turn": torch.arange(4).expand(4, 4) // 2, "position": torch.arange(4).expand(4, 4),
        "version": 3 - (torch.arange(4).expand(4, 4) == 1).long(), "extra": {"level": old * 0 + 0.5},
    }  # fmt: skip
    return SignalBatch.from_padded([[1] * 4] * 4, **{**given, **changes})


def loss_of(chosen: trimtab.Recipe, micro_batches: int = 1, **given: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """The gradient and the metrics of one step; entropy rises with the token's number."""
    held = given.pop("batch", None) or batch(**given)
    prepared, _ = prepare(held, chosen)
    update = next(prepared.updates(1))
    index = select(held.segments, update.sequences)[1]
    logp = (held.logp_old - 0.02).clone().requires_grad_()
    entropy = torch.arange(held.num_tokens, dtype=F64) / held.num_tokens
    needs = prepared.recipe.needs_logp_now
    decided = decide(update, logp[index].detach() if needs else None, entropy_now=entropy[index] if needs else None)
    outs = []
    for micro in decided.split(num=micro_batches):
        own = select(held.segments, micro.sequences)[1]
        outs.append(token_loss(micro, logp[own], entropy=entropy[own]))
        outs[-1].loss.backward()
    assert logp.grad is not None
    return logp.grad, prepared.metrics.merge(step(outs).metrics).numbers()


def test_an_entropy_gate_keeps_the_most_uncertain_tokens_of_the_update() -> None:
    chosen = recipe("tis", correction=Stage(part("outside_formulas.high_entropy", share=0.25)))
    assert chosen.needs_entropy_now
    assert "entropy" in chosen.needs
    gradient, metrics = loss_of(chosen)
    assert metrics["kept/token_fraction"] == 0.25
    assert torch.equal(gradient != 0, torch.arange(16) >= 12)


def test_a_policy_loss_reads_entropy_as_a_number_and_sends_no_gradient_into_it() -> None:
    held = batch()
    decided = decide(
        next(prepare(held, recipe("start_on_policy", loss="outside_formulas.weighed_by_entropy"))[0].updates(1))
    )
    (micro,) = decided.split(num=1)
    logp = held.logp_old.clone().requires_grad_()
    entropy = torch.full((held.num_tokens,), 0.5, dtype=F64, requires_grad=True)
    token_loss(micro, logp[select(held.segments, micro.sequences)[1]], entropy=entropy).loss.backward()
    assert logp.grad.abs().sum() > 0
    assert entropy.grad is None or not entropy.grad.any()


def test_an_importance_that_is_decided_from_entropy_carries_no_gradient() -> None:
    held = batch()
    update = next(prepare(held, recipe("tis", correction=Stage(part("outside_formulas.as_entropy"))))[0].updates(1))
    index = select(held.segments, update.sequences)[1]
    entropy = torch.full((held.num_tokens,), 0.5, dtype=F64, requires_grad=True)
    logp = held.logp_old.clone().requires_grad_()
    decided = decide(update, logp[index], entropy_now=entropy)
    (micro,) = decided.split(num=1)
    token_loss(micro, logp[index], entropy=entropy).loss.backward()
    assert logp.grad.abs().sum() > 0
    assert entropy.grad is None or not entropy.grad.any()


def test_no_gradient_flows_through_an_importance_that_forgot_to_detach() -> None:
    """Stages read the current policy as a number."""
    plain, forgot = (
        loss_of(recipe("reinforce", correction=Stage(part(f"outside_formulas.{name}", **settings), ratio="total")))[0]
        for name, settings in (("halved", {"factor": 1.0}), ("undetached", {}))
    )
    assert plain.abs().sum() > 0
    assert torch.equal(plain, forgot)


def test_a_value_that_no_term_asks_for_changes_nothing() -> None:
    held = batch()
    (micro,) = decide(next(prepare(held, recipe("tis"))[0].updates(1))).split(num=1)
    logp = held.logp_old[select(held.segments, micro.sequences)[1]].clone().requires_grad_()
    with_value = token_loss(micro, logp, value=torch.ones(held.num_tokens, dtype=F64)).loss
    assert torch.equal(with_value, token_loss(micro, logp).loss)


def test_the_effect_of_a_shaping_step_is_how_far_it_moves_the_reward() -> None:
    shaping = (part("reward.affine", bias=0.5), part("reward.clip", low=-1.0, high=1.0))
    prepared, _ = prepare(batch(), recipe("tis", reward=shaping))
    numbers = prepared.metrics.numbers()
    # rewards 1, 0, 0.25, 1 all move by 0.5; then 1.5, 0.5, 0.75, 1.5 are clipped at 1
    assert numbers["reward.affine/effect"] == pytest.approx(0.5)
    assert numbers["reward.clip/effect"] == pytest.approx(0.25)


def test_an_advantage_in_half_precision_is_refused() -> None:
    held = batch()
    with pytest.raises(SignalError, match="prepare: advantage is bfloat16"):
        prepare(held, recipe("tis"), advantage=torch.ones(held.num_tokens, dtype=torch.bfloat16))


def test_turn_level_credit_reads_the_turn_the_group_and_a_field_of_the_callers_own() -> None:
    chosen = recipe("start_on_policy", normalize="raw", advantage="outside_formulas.by_turn")
    prepared, _ = prepare(batch(), chosen)
    expected = torch.tensor([1.0, 0.0, 0.25, 1.0], dtype=F64)[:, None] / torch.tensor([1.0, 1.0, 2.0, 2.0]) + 0.5
    torch.testing.assert_close(prepared.advantage, expected.reshape(-1), rtol=0, atol=1e-12)


def test_a_loss_reads_the_version_of_each_token() -> None:
    gradient, _ = loss_of(recipe("start_on_policy", loss="outside_formulas.fresh_only"))
    assert torch.equal(gradient.reshape(4, 4) == 0, torch.arange(4).expand(4, 4) == 1)


def test_a_keep_that_reads_who_trains_decides_after_the_vote() -> None:
    chosen = recipe("tis", correction=Stage(part("outside_formulas.who_trains")), filter_constant_groups=True)
    prepared, _ = prepare(batch(reward=[1.0, 1.0, 0.0, 1.0]), chosen)
    assert prepared.votes.all()
    assert torch.equal(prepared.keep.reshape(4, 4)[:, 0], torch.tensor([False, False, True, True]))


@pytest.mark.parametrize(
    ("missing", "slot", "name"), [("turn", "advantage", "by_turn"), ("version", "loss", "fresh_only")]
)
def test_a_field_that_a_formula_reads_is_needed(missing: str, slot: str, name: str) -> None:
    with pytest.raises(SignalError, match=f"needs {missing}, which the batch does not carry"):
        prepare(batch(**{missing: None}), recipe("start_on_policy", **{slot: f"outside_formulas.{name}"}))


def test_a_formula_that_reads_what_does_not_exist_yet_is_refused_when_the_recipe_is_made() -> None:
    with pytest.raises(SignalError, match=r"reads \['advantage'\], which is not there when a normalize formula runs"):
        recipe("tis", normalize="outside_formulas.reads_the_future")


def test_the_pipeline_owes_every_stage_what_inputs_promises() -> None:
    for stage, names in INPUTS.items():
        entry = next(one for one in trimtab.catalog().values() if one.stage == stage)
        settings = {
            "max_length": 8,
            "buffer": 4,
            "band": (0.9, 1.1),
            "divisor": 8,
            "delta": 0.1,
            "limit": 0.1,
            "low": 0.5,
            "high": 2.0,
        }
        made = part(entry.name, **{name: settings[name] for name in entry.settings if name in settings})
        with pytest.raises(AssertionError, match=f"a {stage} formula is promised"):
            run(made, dict.fromkeys(names[1:]))


@pytest.mark.parametrize("micro_batches", [2, 3, 6])
def test_what_a_late_stage_saw_over_the_update_does_not_depend_on_the_split(micro_batches: int) -> None:
    """A stage of scope update sees the median of the update; asked again per micro-batch it would see another."""
    chosen = recipe("reinforce_tis", correction=Stage(part("outside_formulas.farthest"), ratio="total"))
    given = samples()
    prepared = door(given, chosen)
    update = next(prepared.updates(1))
    index = select(prepared.batch.segments, update.sequences)[1]
    logp = prepared.batch.cells.gather(given["logp"])

    def seen(num: int) -> dict[str, float]:
        outs = []
        for micro in decide(update, logp[index]).split(num=num):
            own = select(prepared.batch.segments, micro.sequences)[1]
            outs.append(token_loss(micro, logp[own].clone().requires_grad_()))
        values = step(outs).metrics.numbers()
        return {name: value for name, value in values.items() if name.startswith("keep.farthest")}

    whole = seen(1)
    assert 0 < whole["keep.farthest/over_high_tokens"] == whole["keep.farthest/rejected_tokens"] < 1
    assert whole["keep.farthest/over_high_sequences"] > whole["keep.farthest/rejected_sequences"]
    assert seen(micro_batches) == pytest.approx(whole, abs=1e-12)
