"""What a recipe asks of a trainer, and when each of its corrections can speak."""

import pytest

from trimtab.signal import KL, Recipe, Stage, Term, names, part, recipe

LOGP_OLD, REF, ROLLOUT = "logp_old", "logp_ref", "logp_rollout"
NEEDS = {
    "start_on_policy": set(),
    "start_engine_mismatch": {LOGP_OLD, ROLLOUT},
    "start_async": {ROLLOUT},
    "reinforce": set(),
    "grpo": {LOGP_OLD, REF},
    "dr_grpo": {LOGP_OLD},
    "rloo": {LOGP_OLD, REF},
    "reinforce_plus_plus": {LOGP_OLD, REF},
    "ppo": {LOGP_OLD, REF, "ended", "value", "value_old"},
    "dapo": {LOGP_OLD},
    "gspo": {LOGP_OLD},
    "cispo": {LOGP_OLD},
    "sapo": {LOGP_OLD},
    "tis": {LOGP_OLD, ROLLOUT},
    "sequence_tis": {LOGP_OLD, ROLLOUT},
    "reinforce_tis": {ROLLOUT},
    "geometric_mask": {LOGP_OLD, ROLLOUT},
    "deepseek_v32": {ROLLOUT, REF},
    "decoupled_ppo": {LOGP_OLD, ROLLOUT},
    "lite_ppo": {LOGP_OLD},
    "reinforce_plus_plus_baseline": {LOGP_OLD, REF},
    "remax": {"baseline"},
    "opo": set(),
    "gpg": set(),
    "asymre": set(),
    "maxrl": set(),
    "pass_at_k": {LOGP_OLD},
    "gdpo": {LOGP_OLD, "rewards"},
    "optimal_token_baseline": {LOGP_OLD, "pi_squared"},
    "on_policy_distillation": {LOGP_OLD, ROLLOUT, "logp_teacher"},
    "rlsd": {LOGP_OLD, "logp_teacher"},
    "vapo": {LOGP_OLD, "ended", "value", "value_old"},
    "gigpo": {LOGP_OLD, REF, "state", "turn"},
    "role_average": {LOGP_OLD, "role"},
    "clip_cov": {LOGP_OLD},
    "kl_cov": {LOGP_OLD},
    "high_entropy_tokens": {LOGP_OLD, "entropy"},
    "gmpo": {LOGP_OLD},
    "kimi_k15": {LOGP_OLD},
    "topr": {ROLLOUT},
    "vespo": {ROLLOUT},
    "scale_rl": {ROLLOUT},
    "icepop": {LOGP_OLD, ROLLOUT},
    "trust_region_masking": {ROLLOUT},
    "dppo": {ROLLOUT},
    "dppo_kl": {ROLLOUT},
    "cppo": {ROLLOUT},
    "kpop": {LOGP_OLD, ROLLOUT},
    "flash_reinforce": {ROLLOUT},
    "m2po": {ROLLOUT},
    "a3po": {ROLLOUT, "version"},
    "trl_defaults": {LOGP_OLD},
    "verl_defaults": {LOGP_OLD, "ended", "value", "value_old"},
    "openrlhf_defaults": {LOGP_OLD, REF, "ended", "value", "value_old"},
    "skyrl_defaults": {LOGP_OLD, REF},
    "slime_defaults": {LOGP_OLD},
    "nemo_rl_defaults": {LOGP_OLD, REF},
    "prime_rl_defaults": {ROLLOUT},
}


@pytest.mark.parametrize("name", names())
def test_a_recipe_needs_what_its_parts_read_and_nothing_else(name: str) -> None:
    assert recipe(name).needs == NEEDS[name]


def band(ratio: str, name: str = "keep.token_band") -> Stage:
    return Stage(part(name, band=(0.5, 2.0)), ratio=ratio)


REINFORCE = Stage(part("policy_loss.reinforce"))
WEIGHTED_KL = part("kl.importance_weighted_k3")
CHANGES = [
    # an anchor of the KL is a policy that it reads
    ("start_on_policy", {"kl": KL(WEIGHTED_KL, 0.1, "loss", anchor="rollout")}, {ROLLOUT, REF}),
    ("start_on_policy", {"kl": KL(WEIGHTED_KL, 0.1, "loss", anchor="old"), "old": "recompute"}, {LOGP_OLD, REF}),
    ("start_on_policy", {"kl": KL(part("kl.k3"), 0.1, "loss")}, {REF}),
    # in the reward it is the KL of the old policy, whatever the loss reads
    ("reinforce", {"kl": KL(part("kl.k1"), 0.1, "sequence_reward"), "old": "recompute"}, {LOGP_OLD, REF}),
    ("reinforce", {"not_ended": "suppress"}, {"ended"}),
    ("reinforce", {"not_ended": "zero"}, {"ended"}),
    ("reinforce", {"reward": (part("reward.not_ended_penalty", amount=1.0),)}, {"ended"}),
    ("reinforce", {"entropy": Term(0.01)}, {"entropy"}),
    ("reinforce", {"nll": Term(0.01)}, set()),
    ("tis", {"correction": (band("total"),), "loss": REINFORCE, "old": "absent"}, {ROLLOUT}),
    ("tis", {"correction": (band("engine"),), "loss": REINFORCE}, {LOGP_OLD, ROLLOUT}),
    ("grpo", {"old": "current"}, {REF}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "needs"), CHANGES, ids=[f"{n}-{[*c]}" for n, c, _ in CHANGES])
def test_what_is_changed_changes_what_is_needed(name: str, changes: dict[str, object], needs: set[str]) -> None:
    assert recipe(name, **changes).needs == needs


@pytest.mark.parametrize(
    ("ratio", "old", "late"),
    [
        ("engine", "recompute", False),  # old and rollout are both known before the first step
        ("engine", "current", True),  # old is the policy that moves
        ("update", "recompute", True),
        ("total", "recompute", True),
        ("total", "absent", True),
    ],
)
def test_a_stage_is_late_when_one_end_of_its_ratio_is_the_current_policy(ratio: str, old: str, late: bool) -> None:
    chosen = recipe("reinforce", correction=(band(ratio),), old=old)
    assert chosen.is_late(chosen.correction[0]) is late
    assert chosen.reads_old is (ratio != "total")


def kept(**changes: object) -> Recipe:
    base: dict[str, object] = {"correction": (band("total"),), "old": "absent"}
    return recipe("reinforce", **(base | changes))


def test_a_forward_pass_before_the_step_is_needed_only_to_count_or_choose_across_it() -> None:
    late, early = band("total"), band("engine")
    over_kept = part("weighting.token_mean", over="kept")
    # a late keep alone decides token by token, inside token_loss
    assert not kept().needs_logp_now
    # what divides by the kept tokens must know them before any micro-batch
    assert kept(weighting=over_kept).needs_logp_now
    assert kept(entropy=Term(0.1, on="kept")).needs_logp_now
    assert kept(nll=Term(0.1, on="kept")).needs_logp_now
    assert kept(kl=KL(part("kl.k3"), 0.1, "loss", on="kept")).needs_logp_now
    assert not kept(entropy=Term(0.1)).needs_logp_now
    # an early keep is known anyway, and an importance removes no token
    assert not kept(weighting=over_kept, correction=(early,), old="recompute").needs_logp_now
    weight = Stage(part("importance.truncated"), ratio="total")
    assert not kept(weighting=over_kept, correction=(weight,)).needs_logp_now
    assert kept(weighting=over_kept, correction=(weight, late), allow_double_count=True).needs_logp_now
    # a loss that chooses tokens across the update
    assert recipe("grpo", loss="covariance_clipped").needs_logp_now
    assert not recipe("grpo").needs_logp_now
    assert not recipe("grpo", loss="covariance_clipped").needs_entropy_now


def test_keys_for_random_choices_are_made_only_where_a_formula_reads_them() -> None:
    assert not recipe("grpo").reads_token_key
    assert not kept().reads_token_key
    assert recipe("grpo", loss="covariance_clipped").reads_token_key  # by the formula that chooses before the loss
    moment = Stage(part("keep.second_moment", limit=0.1), ratio="engine")
    assert recipe("grpo", correction=(moment,)).reads_token_key


def test_a_formula_used_twice_is_numbered_from_2() -> None:
    stages = (band("engine"), band("engine"), Stage(part("keep.veto", high=9.0), ratio="engine"), band("engine"))
    labels = recipe("tis", correction=stages).labelled
    assert list(labels) == ["keep.token_band", "keep.token_band#2", "keep.veto", "keep.token_band#3"]
    assert tuple(labels.values()) == stages


def test_with_a_given_advantage_only_what_comes_after_it_is_left() -> None:
    before = recipe("ppo", not_ended="zero", clip_advantage=5.0, value=None).with_given_advantage
    assert (before.reward, before.whiten, before.clip_advantage, before.kl) == ((), False, None, None)
    assert (before.normalize.formula.name, before.advantage.formula.name) == ("normalize.raw", "advantage.broadcast")
    assert before.not_ended == "train"
    after = recipe("grpo", not_ended="suppress").with_given_advantage
    assert after.not_ended == "suppress"
    assert after.kl == recipe("grpo").kl
