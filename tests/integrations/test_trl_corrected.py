"""TRL's GRPOTrainer with our loss: as TRL is configured it gives TRL's own loss and gradient, in TRL's own runs."""

import contextlib
import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("trl") is None:
    pytest.skip("needs TRL: make test-integrations", allow_module_level=True)

import torch
from tests.integrations.trl_run import problems, rollout, trainer
from trl import GRPOTrainer

import trimtab
from trimtab.errors import AdapterError
from trimtab.integrations import trl
from trimtab.signal import Recipe, Stage, part, recipe

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore:the sampler differs from the trainer"),
    pytest.mark.filterwarnings("ignore:.*switched on"),
]
FLOAT32 = 2e-5
TIS = Recipe(
    name="clip and TIS",
    loss=Stage(part("policy_loss.clipped", band=(0.8, 1.2)), anchor="old"),
    weighting=part("weighting.token_mean"),
    normalize=part("normalize.raw"),
    correction=(Stage(part("importance.truncated", level="token", band=(0.0, 2.0)), ratio="engine"),),
)


class Compared(GRPOTrainer):
    """Keeps TRL's own loss of every micro-batch, which the class above it replaces."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self.theirs = super()._compute_loss(model, inputs)
        return self.theirs


def beside(kind: type) -> type:
    """Both losses of each micro-batch, and their gradients at the parameters."""

    class Beside(kind):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            self.pairs = getattr(self, "pairs", [])
            self.seen = inputs
            loss = super()._compute_loss(model, inputs)
            both = [loss.detach()], [self.theirs.detach()]
            if loss.requires_grad:
                for one, held in zip((loss, self.theirs), both, strict=True):
                    found = torch.autograd.grad(one, [*model.parameters()], retain_graph=True, allow_unused=True)
                    held.append(torch.cat([g.flatten() for g in found if g is not None]))
            self.pairs.append(both)
            return loss

    return Beside


def ran(folder: Path, how: Any = None, *, steps: int = 3, **given: Any) -> Any:
    kind = beside(trl.corrected(Compared, how))
    more = {"num_iterations": 2, "learning_rate": 5e-3, "warm": 10, **given}
    made = trainer(folder, kind=kind, steps=steps, **more)
    with contextlib.redirect_stdout(io.StringIO()):
        made.train()
    return made


def assert_same(made: Any, least: int = 3) -> None:
    assert len(made.pairs) >= least
    for ours, theirs in made.pairs:
        torch.testing.assert_close(ours[0], theirs[0], rtol=FLOAT32, atol=1e-6)
        if len(ours) > 1:
            scale = float(theirs[1].abs().max())
            assert scale > 0
            torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=FLOAT32 * scale + 1e-9)


CUT = {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 8, "num_generations": 8}
OPTIONS: dict[str, dict[str, Any]] = {
    "dapo, TRL's default": {"num_iterations": 1},
    "dapo, a KL, accumulation": {"beta": 0.1, **CUT},
    "dapo, several steps per batch": {"steps_per_generation": 4, "per_device_train_batch_size": 8},
    "dapo, delta": {"delta": 1.4, "epsilon_high": 0.28},
    "grpo, plain KL": {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False, **CUT},
    "grpo, truncated answers masked": {"loss_type": "grpo", "mask_truncated_completions": True},
    "bnpo, accumulation": {"loss_type": "bnpo", **CUT},
    "dr_grpo": {"loss_type": "dr_grpo", "beta": 0.1, **CUT},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 0.02},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "sapo": {"loss_type": "sapo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, **CUT},
    "entropy quantile": {"top_entropy_quantile": 0.4},
    "off-policy mask": {"off_policy_mask_threshold": 0.02, "rollout_func": rollout(noise=0.3)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_as_it_is_configured_loss_and_gradient_are_trl_s(options: dict[str, Any], tmp_path: Path):
    assert_same(ran(tmp_path, **options))


def with_vllm_ratio(kind: type, mode: str) -> type:
    """The factor that TRL makes where vLLM samples; here a function samples."""

    class Vllm(kind):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            difference = (out["old_per_token_logps"] - out["sampling_per_token_logps"]) * out["completion_mask"]
            ratio = (difference.sum(1, keepdim=True) if mode == "sequence" else difference).exp()
            out["importance_sampling_ratio"] = ratio.masked_fill(ratio > 1.3, 0.0)
            return out

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            self.use_vllm = True
            try:
                return super()._compute_loss(model, inputs)
            finally:
                self.use_vllm = False

    return Vllm


@pytest.mark.parametrize("mode", ["token", "sequence"])
def test_the_ratio_of_the_vllm_path_is_spent_once(mode: str, tmp_path: Path):
    kind = with_vllm_ratio(beside(trl.corrected(Compared)), mode)
    made = trainer(tmp_path, kind=kind, steps=3, num_iterations=2, rollout_func=rollout(noise=0.3), beta=0.1)
    with contextlib.redirect_stdout(io.StringIO()):
        made.train()
    assert_same(made)
    assert float((made.seen["importance_sampling_ratio"] - 1).abs().max()) > 0.1


def test_tool_tokens_are_left_out(tmp_path: Path):
    inner = rollout()

    def run(prompts: list[str], held: Any) -> dict[str, Any]:
        out = inner(prompts, held)
        out["env_mask"] = [[0 if place == 1 else 1 for place in range(len(ids))] for ids in out["completion_ids"]]
        return out

    assert_same(ran(tmp_path, rollout_func=run, beta=0.1))


def test_evaluation_is_trl_s_too(tmp_path: Path):
    made = ran(
        tmp_path, eval_dataset=problems(16, 9), eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=16,
        logging_steps=1,
    )  # fmt: skip
    assert_same(made)
    assert any(len(ours) == 1 for ours, _ in made.pairs)
    logged = {name for line in made.state.log_history for name in line}
    assert {"entropy", "clip_ratio/region_mean", "trimtab/loss/policy", "eval_trimtab/loss/policy"} <= logged


def test_corrected_is_the_signal_on_the_same_batch(tmp_path: Path):
    made = ran(tmp_path, TIS, rollout_func=rollout(noise=0.3), steps=1)
    inputs, (ours, theirs) = made.seen, made.pairs[0]
    logp, _, _ = made._get_per_token_logps_and_entropies(
        trainer_start(tmp_path),
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
        torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
        inputs["completion_ids"].shape[1],
    )
    loss, _ = trimtab.loss(
        logp, recipe=TIS, mask=inputs["completion_mask"].bool(), advantage=inputs["advantages"],
        logp_old=inputs["old_per_token_logps"], logp_rollout=inputs["sampling_per_token_logps"],
    )  # fmt: skip
    torch.testing.assert_close(ours[0], loss.detach(), rtol=FLOAT32, atol=1e-6)
    assert abs(float(ours[0] - theirs[0])) > 1e-3


def trainer_start(folder: Path) -> Any:
    from transformers import Qwen3ForCausalLM
    from trl.trainer.grpo_trainer import add_fused_lm_head

    made = Qwen3ForCausalLM.from_pretrained(folder / "start")
    add_fused_lm_head(made)
    return made


class Divides(GRPOTrainer):
    """Divides the loss for accumulation, which is done."""

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        return super().compute_loss(*given, **named) / 4


def test_a_loss_that_is_divided_again_is_said(tmp_path: Path):
    made = trainer(tmp_path, kind=trl.corrected(Divides), steps=1)
    with contextlib.redirect_stdout(io.StringIO()), pytest.warns(UserWarning, match="a gradient of 0.25 arrived"):
        made.train()


def test_a_healthy_run_says_nothing_and_can_be_watched(tmp_path: Path):
    made = trainer(tmp_path, kind=trl.corrected(GRPOTrainer), steps=4, logging_steps=1, **CUT)
    watch = trl.attach(made)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("error", message="loss:")
        made.train()
    assert watch.failures == []
    assert watch.findings == []


@pytest.mark.parametrize(
    ("how", "options", "said"),
    [
        (None, {"loss_type": "vespo"}, "loss_type = 'vespo' has no equivalent"),
        (None, {"entropy_coef": 0.01}, "entropy_coef or use_adaptive_entropy adds a term"),
        (None, {"delta": 1.1}, "delta = 1.1 lies inside the clip"),
        (None, {"importance_sampling_level": "sequence", "delta": 2.0}, "delta together with importance_sampling"),
        (TIS, {"epsilon": 0.3}, "epsilon = 0.3 is set, and recipe 'clip and TIS' decides that"),
        (TIS, {"beta": 0.1}, "has a KL coefficient of 0 and TRL beta = 0.1"),
        (recipe("grpo", kl=None, whiten=True), {}, "whitens advantages over the batch"),
        (recipe("grpo", kl=None, not_ended="suppress"), {}, "does not learn which ended"),
    ],
)
def test_what_cannot_act_is_refused_by_name(how: Any, options: dict[str, Any], said: str, tmp_path: Path):
    with pytest.raises(AdapterError, match=said):
        _ = trainer(tmp_path, kind=trl.corrected(GRPOTrainer, how), warm=0, **options)


def test_a_correction_without_sampling_log_probs_is_refused(tmp_path: Path):
    with pytest.raises(AdapterError, match="no sampling_per_token_logps, so the correction could not act"):
        _ = ran(tmp_path, TIS, steps=1)
