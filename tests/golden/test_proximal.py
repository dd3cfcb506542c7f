"""The interpolated old policy by hand, and in a recipe."""

import pytest
import torch
from tests.golden.exact import assert_near, index, tokens
from tests.golden.exact import log as logp

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, decide, prepare, recipe, token_loss, use_path
from trimtab.signal.proximal import current_share, interpolated

F64 = torch.float64


def test_the_share_of_the_current_policy_grows_with_the_age_of_a_token() -> None:
    # now 5; ages 0, 1, 2, 4 and a token from the future: (age - 1) / age
    assert_near(current_share(index(5, 4, 3, 1, 7), 5, F64), 0.0, 0.0, 0.5, 0.75, 0.0)


def test_the_old_policy_lies_on_the_way_from_the_sampler_to_the_current_policy() -> None:
    # in log-probs: half way between 0.16 and 0.36 is 0.24
    current = logp(0.36, 0.36, 0.36).requires_grad_()
    old = interpolated(current, logp(0.16, 0.16, 0.16), tokens(0.0, 0.5, 1.0))
    assert_near(old.exp(), 0.16, 0.24, 0.36)
    assert not old.requires_grad


def batch(**fields: object) -> SignalBatch:
    given = {"logp_rollout": logp(0.16, 0.16), "version": [3, 4]} | fields
    return SignalBatch.from_tokens([1, 1], reward=[1.0, 2.0], group=[0, 1], **given)


@pytest.mark.parametrize("path", ["fast", "reference"])
@pytest.mark.parametrize("name", ["clipped", "tapered"])
def test_a_recipe_splits_the_drift_at_the_interpolated_policy(name: str, path: str) -> None:
    """current 0.36, rollout 0.16. Age 2: old 0.24, so old / rollout and current / old are 1.5 each. Age 1: 1 and 2.25.

    Unclipped PPO gives -A * (current / old) * (old / rollout): 2.25 at both. With the engine's importance held at 1.2
    it is 1.2 * 1.5 and 1 * 2.25.
    """
    settings = {"band": (0.0, 9.0)} if name == "clipped" else {}
    chosen = recipe(
        "decoupled_ppo", old="interpolated", normalize="raw", weighting="token_sum",
        loss={"formula": name, **settings, "anchor": "old"},
        correction={"formula": "importance.truncated", "band": (0.0, 1.2), "ratio": "engine"},
    )  # fmt: skip
    assert chosen.needs >= {"version", "logp_rollout"}
    assert "logp_old" not in chosen.needs
    with use_path(path):
        prepared, _ = prepare(batch(), chosen, version=5)
        (micro,) = decide(next(prepared.updates(1))).split(num=1)
        logp_current = logp(0.36, 0.36).requires_grad_()
        out = token_loss(micro, logp_current)
        out.loss.backward()
    assert_near(out.importance, 1.2, 1.0)
    ratios = (1.5, 2.25) if name == "clipped" else (1.0, 1.0)
    assert_near(logp_current.grad, -1.2 * ratios[0] * 1.0, -ratios[1] * 2.0)


def test_without_the_version_that_trains_it_is_refused() -> None:
    with pytest.raises(SignalError, match="nobody said which version trains"):
        prepare(batch(), recipe("decoupled_ppo", old="interpolated"))
    with pytest.raises(SignalError, match="needs version, which the batch does not carry"):
        prepare(batch(version=None), recipe("decoupled_ppo", old="interpolated"), version=5)
