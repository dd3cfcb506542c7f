"""Known bugs of prime-rl, most of them in functions that are long gone."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from bench.known_bugs.row import Row
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.prime_rl import TARGET
from trimtab.sentinel.targets.stand_in import Settings, by_group, normalised
from trimtab.sentinel.targets.target import Binding


def advantages(fn: Boundary) -> list[Subject]:
    """Rewards of each group minus their mean, over the spread of the group or of the batch."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        reward, out = case.sequence("reward").float(), torch.zeros(case.num_sequences)
        for rows in by_group(case):
            if len(set(reward[rows].tolist())) < 2:
                raise case.cannot("a group without differences has no spread")
            lengths = torch.ones(len(rows), dtype=torch.long)
            out[rows] = fn(reward[rows], lengths, float(reward.std()), Settings(**options))
        return {"advantage": Result(out, "sequence", "advantage")}

    return [
        Subject("compute_advantage", call, couples="group" if std == "local" else "batch", options={"std_norm": std},
                definition=normalised("group", "group" if std == "local" else "batch", eps=1e-8),
                variants={"std_norm": ("local" if std == "global" else "global", None)})
        for std in ("local", "global")
    ]  # fmt: skip


def grpo_loss(fn: Boundary) -> Subject:
    """The clipped loss of [rows, width] logits; every row opens with a token that nothing predicts."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if any(kinds[:1] != ("p",) for kinds in case.kinds):
            raise case.cannot("a sequence has no prompt")
        loss, _ = fn(
            case.logits(), case.padded("token_id"), case.padded("advantage"), case.padded("logp_old"),
            case.padded("trainable", dtype=torch.long), **options,
        )  # fmt: skip
        return {"loss": Result.scalar(loss, "loss")}

    return Subject("_compile_grpo_loss", call, options={"temperature": 1.0, "epsilon": 0.2})


def request_rewards(fn: Boundary) -> Subject:
    """Rewards of one request minus their mean, over their spread."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        reward, out = case.sequence("reward"), torch.zeros(case.num_sequences)
        for rows in by_group(case):
            if len(rows) < 2:
                raise case.cannot("a group of one has no spread")
            completions = [SimpleNamespace(reward=float(reward[i])) for i in rows]
            found = fn(completion_rewards=completions, config=SimpleNamespace(**options))["advantage_array"]
            out[rows] = torch.as_tensor(found)
        return {"advantage": Result(out, "sequence", "advantage")}

    return Subject(
        "_compute_request_rewards", call, couples="group", options={"advantage_estimation_method": "grpo"},
        definition=normalised("group", "group", eps=1e-6),
    )  # fmt: skip


def packed(fn: Boundary) -> Subject:
    """Samples in bins: what the trainer reads at each token of its packed row."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        prompts = [kinds.count("p") for kinds in case.kinds]
        logp, samples = case.list("logp_rollout"), []
        if any(kinds[:1] != ("p",) for kinds in case.kinds):
            raise case.cannot("a sequence has no prompt")
        prepare = fn.get("prepare_sample")
        for i, kinds in enumerate(case.kinds):
            n = len(kinds) - prompts[i]
            samples.append(
                {**prepare([i] * prompts[i], [0] * prompts[i], [i] * n, [1] * n, logp[i][prompts[i] :].tolist(), 0.0,
                           100, None, False), "row": i}
            )  # fmt: skip
        bins = fn(samples, 1000)
        joined = fn.get("prepare_micro_batch_packing")(bins[0], 1000, 1.0)
        back, start = [torch.zeros(0)] * case.num_sequences, 0
        gap = joined["input_ids"].shape[1] - joined["logprobs"].shape[1]  # before the fix, position t is token t + gap
        for sample in bins[0]:
            i, size = sample["row"], len(case.kinds[sample["row"]])
            row = torch.nn.functional.pad(joined["logprobs"][0], (gap, 0))[start : start + size]
            back[i], start = row, start + size
        return {"logp": Result(case.from_list(back), "token", "carried", of="logp_rollout")}

    return Subject("packed_samples_into_micro_bs", call, role="packing")


def sequence_loss(fn: Boundary) -> Subject:
    """The loss of the sequence ratio, with credit by token."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        loss, _ = fn(
            case.list("logp_current"), case.list("logp_rollout"), case.list("advantage"),
            case.list("trainable", dtype=torch.bool), Settings(mask_ratio_low=0.0, mask_ratio_high=100.0, **options),
            loss_scale=case.whole.num_sequences,
        )  # fmt: skip
        return {"loss": Result.scalar(loss, "loss")}

    options = {"ratio_type": "sequence", "ratio_length_norm": True}
    return Subject("compute_loss", call, options=options, combine="sum", stops_gradient=True)


def counted(fn: Boundary) -> Subject:
    """A loss summed over tokens, over the scale that the trainer works out for a custom loss."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        masks = case.whole.list("trainable", dtype=torch.long)
        batches = [{"loss_mask": mask} for mask in masks]
        config = SimpleNamespace(loss=SimpleNamespace())
        scale = fn(micro_batches=batches, batch_size=len(batches), config=config)["loss_scale"]
        return {"loss": Result.scalar(case.flat("token_loss").sum() / scale, "loss")}

    told = {"denominator": "token_mean"}
    return Subject("train (scale of the loss)", call, combine="sum", role="aggregation", conventions=told)


def _row(name: str, buggy: str, fixed: str, invariants: tuple[str, ...], binding: Binding, note: str = "") -> Row:
    return Row(name, "prime_rl", TARGET.repository, buggy, fixed, invariants, binding, note)


ROWS = [
    _row("PRIME-STDNORM-SWAP", "4bc31117f", "7d9a34510", ("equals_definition",),
         Binding("compute_advantage", (Spec("compute_advantage", file="src/prime_rl/orchestrator/advantage.py"),),
                 advantages)),
    _row("PRIME-ADV-BCAST", "270b5f51c", "8d77a2cd9", ("sample_isolation",),
         Binding("_compile_grpo_loss", (Spec("_compile_grpo_loss", file="src/zeroband/training/loss.py"),), grpo_loss)),
    _row("PRIME-GRPO-PRECEDENCE", "37341fc8f", "748158fa6", ("equals_definition",),
         Binding("_compute_request_rewards", (
             Spec("_compute_request_rewards", file="src/zeroband/inference/rewards.py",
                  first="reward_array = np.array(", last='config.advantage_estimation_method == "grpo"',
                  results=("advantage_array",)),), request_rewards)),
    _row("PRIME-LOGP-PACK", "c42574bbc", "63647607e", ("alignment",),
         Binding("packed_samples_into_micro_bs", (
             Spec("packed_samples_into_micro_bs", file="src/prime_rl/orchestrator/data.py"),), packed),
         "read with the offset of its trainer, every log-prob belongs to its token even before the repair"),
    _row("PRIME-NORM-CUSTOM", "6c55a9aab", "7e0673020", ("denominator", "declared_conventions"),
         Binding("train", (Spec("train", file="src/prime_rl/trainer/rl/train.py", results=("loss_scale",),
                                first="if isinstance(config.loss, DefaultLossConfig)",
                                last="loss_scale = max(loss_scale, 1)"),
                           Spec("train", file="src/prime_rl/trainer/rl/train.py", results=("loss_scale",),
                                first="loss_scale = sum(micro_batch", last="loss_scale = max(loss_scale, 1)")),
                 counted, given=lambda: {"DefaultLossConfig": Settings})),
    _row("PRIME-GSPO-TOKENADV", "90d63a6ad", "48b9ec7a8", ("sample_isolation", "connected", "denominator"),
         Binding("compute_loss", (Spec("compute_loss", file="src/prime_rl/trainer/rl/loss.py"),), sequence_loss),
         "torch 2.13 refuses the buggy statement: full_like takes no tensor that carries gradient"),
]  # fmt: skip
