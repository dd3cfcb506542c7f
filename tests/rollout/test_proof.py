"""Which parameters a server computed with, from its log-probs: by hand, and where rounding hides the step."""

import math

import pytest
import torch
from torch import Tensor

from trimtab.errors import EngineError
from trimtab.rollout.proof import judge, temperature_between

ROWS, TOKENS = 16, 64


def probe(step: float, noise: float, share: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The server's, the old and the new log-probs of a step, where the server rounds and went `share` of the way."""
    random = torch.Generator().manual_seed(seed)
    old = -torch.rand(ROWS * TOKENS, generator=random).double() * 4
    way = step * torch.randn(ROWS * TOKENS, generator=random).double()
    rounding = noise * torch.randn(ROWS * TOKENS, generator=random).double()
    return old + share * way + rounding, old, old + way


def test_a_share_by_hand() -> None:
    old, new = torch.tensor([-1.0, -2.0]), torch.tensor([-1.2, -1.6])
    server = torch.tensor([-1.19, -1.61])
    proof = judge(4, server, old, new, [1, 1])
    # <(-0.19, 0.39), (-0.2, 0.4)> / |(-0.2, 0.4)|^2 = 0.194 / 0.2
    assert proof.share == pytest.approx(0.97, abs=1e-5)
    assert proof.drift == pytest.approx(0.01, abs=1e-6)
    assert proof.moved == pytest.approx(math.sqrt(0.1), abs=1e-6)
    # leaving out the first gives 0.156 / 0.16 = 0.975, leaving out the second 0.038 / 0.04 = 0.95
    assert proof.error == pytest.approx(0.0125, abs=1e-5)
    assert (proof.version, proof.tokens) == (4, 2)


@pytest.mark.parametrize(
    ("step", "noise", "share", "verdict"),
    [
        (0.0035, 1e-6, 1.0, "proven"),  # float32, learning rate 1e-5
        (0.0035, 1e-6, 0.0, "refused"),
        (0.0035, 1e-6, 0.5, "refused"),
        (0.0035, 0.016, 1.0, "proven"),  # bf16: the rounding is five times the step
        (0.0035, 0.016, 0.0, "refused"),
        (0.0003, 0.016, 1.0, "unproven"),  # a tenth of that step cannot be seen
        (0.0003, 0.016, 0.0, "unproven"),
        (0.0, 0.016, 1.0, "unproven"),
        (0.1, 0.016, 1.3, "refused"),  # beyond: parameters of a later step
    ],
)
def test_the_direction_tells_what_a_tolerance_cannot(step: float, noise: float, share: float, verdict: str) -> None:
    for seed in range(8):
        found = judge(1, *probe(step, noise, share, seed), [TOKENS] * ROWS, noise)
        # Where rounding is larger than the step, one draw in a few is unlucky: then it is unproven, never the opposite.
        assert found.verdict == verdict or (noise > step and found.verdict == "unproven")


def test_sixty_four_tokens_do_not_tell_and_a_thousand_do() -> None:
    server, old, new = probe(0.0035, 0.016, 1.0)
    assert judge(1, server, old, new, [TOKENS] * ROWS).verdict == "proven"
    assert judge(1, server[:64], old[:64], new[:64], [4] * 16).verdict == "unproven"


def test_a_share_of_one_with_much_more_noise_than_before_is_refused() -> None:
    """A stale prefix cache moves log-probs across the step, not along it: the share alone is 1 and tells nothing."""
    server, old, new = probe(0.4, 0.08, 1.0)
    assert judge(1, server, old, new, [TOKENS] * ROWS).verdict == "proven"
    assert judge(1, server, old, new, [TOKENS] * ROWS, noise=1e-6).verdict == "refused"
    assert judge(1, server, old, new, [TOKENS] * ROWS, noise=0.05).verdict == "proven"


def test_log_probs_of_another_model_are_refused() -> None:
    server, old, new = probe(1e-3, 0.0, 1.0)
    assert judge(1, server.flip(0), old, new, [TOKENS] * ROWS).verdict == "refused"


def test_errors_that_go_together_within_an_answer_count_once() -> None:
    """Every token of an answer is off by the same: the tokens alone would promise more than there is."""
    random = torch.Generator().manual_seed(0)
    old = -torch.rand(ROWS * TOKENS, generator=random).double()
    new = old + 0.01
    shift = (0.01 * torch.randn(ROWS, generator=random).double()).repeat_interleave(TOKENS)
    found = judge(1, new + shift, old, new, [TOKENS] * ROWS)
    spread = float(shift[::TOKENS].std()) / 0.01 / math.sqrt(ROWS)
    assert found.error == pytest.approx(spread, rel=0.01)


def test_the_temperature_between_two_is_found() -> None:
    logits = torch.randn(200, 30, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(200) % 30

    def at(temperature: float) -> Tensor:
        return (logits / temperature).log_softmax(-1)[range(200), ids]

    assert temperature_between(at(0.85), at(0.8), at(0.9), (0.8, 0.9)) == pytest.approx(0.85, abs=5e-3)
    assert temperature_between(at(1.0), at(0.7), at(0.9), (0.7, 0.9)) == pytest.approx(1.0, abs=0.05)
    assert math.isnan(temperature_between(at(1.0), at(0.7), at(0.7), (0.7, 0.7)))


def test_what_cannot_be_compared_is_refused() -> None:
    server, old, new = probe(0.1, 0.0, 1.0)
    with pytest.raises(EngineError, match="so they cannot be compared"):
        judge(1, server[:-1], old, new, [TOKENS] * ROWS)
    with pytest.raises(EngineError, match="the new log-probs are not finite at 1 of 1024"):
        judge(1, server, old, new.where(torch.arange(1024) != 5, torch.tensor(math.nan).double()), [TOKENS] * ROWS)
