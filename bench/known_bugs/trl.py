"""Known bugs of TRL: rows, and bindings of statements that old commits had inside larger methods."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from bench.known_bugs.row import Row
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets import trl
from trimtab.sentinel.targets.stand_in import Settings, contiguous_groups
from trimtab.sentinel.targets.target import Binding
from trimtab.sentinel.targets.trl import advantage as trl_advantage
from trimtab.sentinel.targets.trl import loss as trl_loss
from trimtab.sentinel.targets.trl.source import GRPO, Alone

REPOSITORY = "huggingface/trl"
SCORE = "GRPOTrainer._generate_and_score_completions"


def of(name: str) -> Binding:
    """A binding of the ready target."""
    return next(binding for binding in trl.TARGET.bindings if binding.name == name)


def _scaled(boundary: Boundary) -> list[Subject]:
    others = {"group": ("none", "batch"), "none": ("group", "batch")}

    def subject(kind: str) -> Subject:
        def call(case: Case, chosen: Mapping[str, Any]) -> Out:
            groups = contiguous_groups(case)
            if len({len(g) for g in groups}) != 1 or len(groups[0]) < 2:
                raise case.cannot("prompts have equally many completions, two or more")
            trainer = Settings(reward_weights=torch.ones(1).double(), num_generations=len(groups[0]), **chosen)
            given = {"rewards_per_func": case.sequence("reward")[:, None], "device": torch.device("cpu")}
            return {"advantage": Result.sequence(boundary(self=trainer, **given)["advantages"], "advantage")}

        return Subject(f"scale_rewards[{kind}]", call, options={"scale_rewards": kind}, couples="group",
                       definition=trl_advantage.normalized(kind), variants={"scale_rewards": others[kind]},
                       boundary=boundary)  # fmt: skip

    return [subject("group"), subject("none")]


def _every_grpo(boundary: Boundary) -> list[Subject]:
    clips = {"epsilon_low": 0.2, "epsilon_high": 0.28}
    define = trl_loss.one_advantage(like("policy_loss.clipped", mean="token_mean", band=trl_loss.band))
    return [trl_loss.loss(boundary, {**clips, "loss_type": "dapo"}, definition=define)]


def _clip_fraction(boundary: Boundary) -> Subject:
    return trl_loss.loss(
        boundary, {"epsilon_low": 0.2, "epsilon_high": 0.28, "num_iterations": 2}, read=("clip_ratio",)
    )


def _logged_reward(boundary: Boundary) -> Subject:
    """Two reward functions of which the second has weight 0: the logged reward is the mean of the first."""

    def read(case: Case) -> Any:
        both = torch.stack([case.sequence("reward"), case.sequence("outcome")], 1)
        own = Settings(
            reward_weights=torch.tensor([1.0, 0.0], dtype=torch.float64), _metrics={"train": defaultdict(list)}
        )
        boundary(self=own, rewards_per_func=both, mode="train")
        return own._metrics["train"]["reward"][-1]

    returns = {"reward": at((), "metric", level="scalar", of="reward", reduction="mean", population="sequence")}
    return bind(read, role="metric", name="logged reward", args={"case": lambda c: c}, returns=returns)


def _filtered(boundary: Boundary) -> Subject:
    """A filter keeps every row, in another order; the log-probs of each row must match its ids."""

    def call(case: Case, _: Mapping[str, Any]) -> Out:
        count = case.num_sequences
        if count < 2:
            raise case.cannot("there is one row")
        order = torch.arange(count - 1, -1, -1)
        view: dict[str, Any] = {"with_prompt": False}
        fields = {n: case.padded(f, **view).clone() for n, f in
                  (("old_per_token_logps", "logp_old"), ("ref_per_token_logps", "logp_ref"),
                   ("sampling_per_token_logps", "logp_rollout"))}  # fmt: skip
        ids, mask = case.padded("token_id", **view), case.padded("response", dtype=torch.long, **view)
        own = Settings(num_remains_in_group=count, accelerator=Alone(), use_vllm=False)
        found = boundary(
            self=own, mode="train", group_global_indices=order, process_slice=slice(0, count), prompts=[None] * count,
            prompt_ids=ids[:, :1], prompt_mask=mask[:, :1], completion_ids=ids, completion_mask=mask,
            attention_mask=mask,
            **fields,
        )  # fmt: skip
        back = torch.argsort(order)
        return {n: Result.token(case, found[n][back], "carried", of=f, **view) for n, f in
                (("old_per_token_logps", "logp_old"), ("ref_per_token_logps", "logp_ref"))}  # fmt: skip

    return Subject("GFPO filter", call, boundary=boundary)


def _cut(label: str, name: str, file: str, make: Any, **cut: Any) -> Binding:
    return Binding(label, (Spec(name, file=file, **cut),), make)


def _row(
    name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: Binding, note: str = ""
) -> Row:
    return Row(name, "trl", REPOSITORY, buggy, fixed, invariants, binding, note)


GFPO = "trl/experimental/gfpo/gfpo_trainer.py"
ROWS: list[Row] = [
    _row("TRL-SCALE-SWAP", "705306d78", "35702ce37", ("equals_definition",), _cut(
        "scale_rewards", SCORE, GRPO, _scaled, first="rewards = (rewards_per_func * self.reward_weights",
        last="advantages = advantages / (std_rewards", results=("advantages",))),
    _row("TRL-CISPO-SWAP", "ffb3dd5d2", "97ca1a256", ("equals_definition",),
         Binding("loss", (Spec("GRPOTrainer._compute_loss", file=GRPO),), _every_grpo)),
    _row("TRL-CLIPFRAC", "488025cd8", "5b586da3c", ("metric_truth",),
         Binding("loss", (Spec("GRPOTrainer.compute_loss", file=GRPO),), _clip_fraction)),
    _row("TRL-REWARD-METRIC", "56354669c", "eff92425d", ("metric_truth",), Binding("reward", (
        Spec(SCORE, file=GRPO, first="rewards = rewards_per_func.nansum(dim=1)",
            last='self._metrics[mode]["reward"].append'),
        Spec(SCORE, file=GRPO,
            first="rewards = (rewards_per_func * self.reward_weights.to(rewards_per_func.device)",
             last='self._metrics[mode]["reward"].append')), _logged_reward)),
    _row("TRL-GFPO-ROWS", "e9ddb5600", "941fb332c", ("alignment",), _cut(
        "filter", "GFPOTrainer._generate_and_score_completions", GFPO, _filtered,
        first="if self.num_remains_in_group is not None and mode == \"train\": local_input_indices_to_keep",
        last="if self.num_remains_in_group is not None and mode == \"train\": local_input_indices_to_keep")),
]  # fmt: skip
