"""A framework's hooks: the only place that says which parts of a recipe can act inside one, and runs them.

Names and layout are the business of each framework's own file. There is no arithmetic here: `trimtab.loss` has it.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import trimtab
from trimtab.errors import AdapterError
from trimtab.signal import Counts, Part, Recipe, SignalBatch, Stage, part, prepare
from trimtab.signal.cookbook import recipe as named

RECIPE = "TRIMTAB_RECIPE"
"""The name of a recipe, for hooks that a framework finds by itself and that nobody can hand one to."""
EARLY = {
    "reward": "shapes rewards",
    "filter_constant_groups": "drops groups by their rewards",
    "group_mean_band": "drops groups by their mean reward",
    "whiten_token_rewards": "whitens token rewards over the batch",
    "whiten": "whitens advantages over the batch",
    "clip_advantage": "bounds advantages",
}
"""What acts before the advantage, which these hooks are handed."""


@dataclass(frozen=True)
class Hook:
    """What a framework hands to its policy loss, and what it computes by itself."""

    framework: str
    sees: frozenset[str]
    """Fields beside the current log-probs, the mask and the advantage, in our names."""
    adds: Mapping[str, str]
    """Terms that the framework adds by itself, and the option that does it."""
    is_whole: bool = False
    """Whether one call holds a whole optimiser step."""


def fitting(hook: Hook, recipe: Recipe | str, weighting: Part, divides: str) -> Recipe:
    """The recipe as it runs inside this hook. A part that could not act here is refused by name, never skipped.

    `weighting` is what the framework divides by, which `divides` names. Baseline and credit are the framework's.
    """
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    where = f"{hook.framework}: recipe {chosen.name!r}"
    for early, does in EARLY.items():
        if getattr(chosen, early):
            raise AdapterError(
                f"{where} {does} ({early}), and this hook is called when advantages are made, so that would not "
                f"happen. Do it in {hook.framework}, and say {early}={_off(early)} here."
            )
    if chosen.not_ended != "train":
        raise AdapterError(
            f"{where} treats answers that did not end apart (not_ended = {chosen.not_ended!r}), and this hook does not "
            f'learn which ended. Mask them in {hook.framework}, and say not_ended="train" here.'
        )
    for term, option in hook.adds.items():
        if getattr(chosen, term) is not None:
            raise AdapterError(
                f"{where} has a term {term!r}, and {hook.framework} adds its own by {option}, so it would be there "
                f"twice or not as the recipe says. Use {option}, and say {term}=None here."
            )
    if chosen.kl is not None and chosen.kl.into != "loss":
        raise AdapterError(
            f"{where} takes the KL into the reward, which was paid before this hook is called. Say kl=None here."
        )
    missing = sorted(chosen.with_given_advantage.needs - hook.sees)
    if missing:
        readers = [
            str(stage) for stage in (chosen.loss, *chosen.correction) if stage.pair in _PAIRS_OF.get(missing[0], ())
        ]
        raise AdapterError(
            f"{where} reads {', '.join(missing)}{' in ' + ', '.join(readers) if readers else ''}, which "
            f"{hook.framework} does not hand to its policy loss, so it cannot act here. Leave that part out."
        )
    if not hook.is_whole and (chosen.weighting.settings.get("over") == "kept" or chosen.decides_across):
        what = "decides across" if chosen.decides_across else "divides by what is kept of"
        raise AdapterError(
            f"{where} {what} the whole optimiser step, and this hook is called for a part of it, so each part would "
            f"get another answer. Leave {chosen.loss.part.formula.name if chosen.loss.part.selector else 'that'} out, "
            'and say over="all".'
        )
    if chosen.weighting.formula.name != weighting.formula.name:
        raise AdapterError(
            f"{where} divides by {chosen.weighting.formula.name}, and {hook.framework} by {weighting.formula.name} "
            f"({divides}), so its other terms and its logs would not fit. Make both the same."
        )
    return replace(chosen.with_given_advantage, weighting=weighting)


_PAIRS_OF = {"logp_rollout": ("engine", "total"), "logp_old": ("engine", "update")}


def _off(early: str) -> str:
    return {"reward": "None", "clip_advantage": "None", "group_mean_band": "None"}.get(early, "False")


def fitting_advantage(hook: Hook, recipe: Recipe | str) -> Recipe:
    """What of a recipe makes advantages out of rewards. Loss, correction and weighting act in other hooks."""
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    where = f"{hook.framework}: recipe {chosen.name!r}"
    if chosen.filter_constant_groups or chosen.group_mean_band is not None:
        word = "filter_constant_groups" if chosen.filter_constant_groups else "group_mean_band"
        raise AdapterError(
            f"{where} drops groups by their rewards ({word}), and an advantage estimator cannot drop "
            f"rows: they would still be counted. Filter in {hook.framework}, and say {word}={_off(word)} here."
        )
    if chosen.kl is not None and chosen.kl.into != "loss":
        raise AdapterError(
            f"{where} takes the KL into the reward, and {hook.framework} does so by itself before this hook. Use "
            f"{hook.adds.get('kl in reward', 'its option')}, and say kl=None here."
        )
    only = replace(
        chosen, loss=Stage(part("policy_loss.reinforce")), correction=(), kl=None, entropy=None, value=None, nll=None,
        weighting=part("weighting.token_mean"), allow_double_count=False,
    )  # fmt: skip
    missing = sorted(only.needs - hook.sees)
    if missing:
        raise AdapterError(
            f"{where} reads {', '.join(missing)}, which {hook.framework} does not hand to an advantage estimator, so "
            "it cannot act here. Leave that part out."
        )
    return only


def fitting_correction(hook: Hook, recipe: Recipe | str) -> Recipe:
    """What of a recipe decides by engine ratios alone; a correction that would be left out is refused."""
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    where = f"{hook.framework}: recipe {chosen.name!r}"
    for stage in chosen.correction:
        if stage.pair != "engine" or chosen.votes_first(stage):
            raise AdapterError(
                f"{where} corrects by {stage}, and this hook sees old and rollout log-probs only, so it cannot act "
                "here. Use the hook of the policy loss, or leave that part out."
            )
    if not chosen.correction:
        raise AdapterError(f"{where} has no correction, so this hook would do nothing. Leave the hook out.")
    return Recipe(
        name=chosen.name, loss=Stage(part("policy_loss.reinforce")), correction=chosen.correction,
        weighting=part("weighting.token_mean"), normalize=part("normalize.raw"),
    )  # fmt: skip


def asked_recipe(default: Recipe | str | None) -> Recipe | str | None:
    """The recipe that was handed over, or named by the environment; None: the framework's own options."""
    return default if default is not None else os.environ.get(RECIPE) or None


_told: set[str] = set()


def tell_once(hook: Hook, recipe: Recipe, *, rank: int = 0) -> None:
    """Say on rank 0 which formulas run inside this hook."""
    tell(
        f"trimtab in {hook.framework}: "
        + ", ".join([str(recipe.loss), *map(str, recipe.correction), *_terms(recipe), str(recipe.weighting)])
        + f"; baseline and credit are {hook.framework}'s",
        rank,
    )


def _terms(recipe: Recipe) -> list[str]:
    kl = [] if recipe.kl is None else [f"{recipe.kl.part} × {recipe.kl.coef}"]
    return kl if recipe.entropy is None else [*kl, f"entropy × {recipe.entropy.coef}"]


def tell(said: str, rank: int = 0) -> None:
    """Say a sentence once, on rank 0."""
    is_here = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if is_here else rank
    if rank == 0 and said not in _told:
        _told.add(said)
        logging.getLogger("trimtab").warning(said)


def run(
    recipe: Recipe, logp: Tensor, mask: Tensor, advantage: Tensor, *, counts: Counts | None = None, ranks: int = 1,
    grad_scale: float | None = None, **fields: Tensor | None,
) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
    """The loss of padded rows and its metrics under `trimtab/`. Only what the recipe reads is looked at."""
    wanted: dict[str, Any] = {name: values for name, values in fields.items() if name in recipe.needs}
    wanted |= {name: fields[name] for name in ("logp_old", "logp_rollout") if fields.get(name) is not None}
    loss, metrics = trimtab.loss(
        logp,
        recipe=recipe,
        mask=mask,
        advantage=advantage,
        counts=counts,
        ranks=ranks,
        grad_scale=grad_scale,
        **wanted,
    )
    return loss, {f"trimtab/{name}": number for name, number in metrics.items()}


def advantages(recipe: Recipe, mask: Tensor, reward: Tensor, group: Any, **fields: Any) -> tuple[Tensor, Tensor]:
    """Advantages and returns of padded rows, [rows, width], 0 outside the mask. One reward and one group per row."""
    batch = SignalBatch.from_padded(mask.bool(), reward=reward, group=_numbered(group), **fields)
    prepared, _ = prepare(batch, recipe)
    scatter = batch.cells.scatter
    return scatter(prepared.advantage, fill=0.0), scatter(prepared.returns, fill=0.0)


def _numbered(group: Any) -> list[int]:
    """Groups by the order of their names: frameworks name them by texts."""
    seen: dict[str, int] = {}
    return [seen.setdefault(str(name), len(seen)) for name in group]


def correct(recipe: Recipe, mask: Tensor, **logps: Tensor) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Importance (1 outside the mask) and what is kept (nothing outside it), [rows, width], and their metrics."""
    mask, rows = mask.bool(), len(mask)
    fields = {name: values.detach() for name, values in logps.items()}
    batch = SignalBatch.from_padded(mask, reward=[0.0] * rows, group=[*range(rows)], **fields)
    prepared, _ = prepare(batch, recipe, advantage=torch.zeros_like(batch.cells.gather(fields["logp_old"])))
    scatter = batch.cells.scatter
    numbers = {f"trimtab/{name}": number for name, number in prepared.metrics.numbers().items()}
    return scatter(prepared.importance, fill=1.0), scatter(prepared.keep, fill=False), numbers


def rows_of(values: Sequence[Tensor]) -> Tensor:
    """1-D tensors as padded rows. A row's own numbers keep their gradient."""
    return torch.nn.utils.rnn.pad_sequence([*values], batch_first=True)
