"""Formulas that are another formula than the one that was meant, and functions that draw random numbers (I24, I17)."""

from mutants.edit import plant
from mutants.ours.formulas import formula, undefined

plant(
    "known_mistake",
    "half_of_the_square_is_missing",
    undefined(formula("kl.k2")),
    "signal.kl:k2",
    "0.5 * (logp_current",
    "(logp_current",
)
plant(
    "known_mistake",
    "critic_takes_the_smaller_error",
    undefined(formula("value_loss.squared_clipped", reach=0.2)),
    "signal.value_loss:squared_clipped",
    "torch.maximum(free, bounded)",
    "torch.minimum(free, bounded)",
)
plant(
    "known_mistake",
    "log_ratio_of_k1_turned_around",
    undefined(formula("kl.k1")),
    "signal.kl:k1",
    "return logp_current - logp_ref.detach()",
    "return logp_ref.detach() - logp_current",
)
plant(
    "deterministic",
    "kl_under_dropout",
    formula("kl.k1"),
    "signal.kl:k1",
    "return logp_current - logp_ref.detach()",
    "return (logp_current - logp_ref.detach()) * (logp_current.detach().clone().uniform_() > 0.5)",
)
plant(
    "deterministic",
    "noise_in_the_value_loss",
    formula("value_loss.squared"),
    "signal.value_loss:squared",
    "0.5 * (value - returns.detach()).square()",
    "(0.5 + torch.rand(())) * (value - returns.detach()).square()",
)
