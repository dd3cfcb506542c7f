"""Log-probs and entropies as other frameworks take them, from logits and from hidden states."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.frameworks import COMPILED, Maker, Timed, acted, checkout, compiled, has_checkout, released

Scores = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From logits to log-probs and entropies."""

AREAL, OPENRLHF = "areal/utils/functional/vocab_parallel.py", "openrlhf/models/utils.py"
PRIME_LOSS, PRIME_HEAD = "src/prime_rl/trainer/rl/loss.py", "src/prime_rl/trainer/models/layers/lm_head.py"
SLIME = "slime/utils/ppo_utils.py"


def plain(ids: Tensor) -> Scores:
    """What everybody would write first."""

    def call(given: Tensor) -> tuple[Tensor, Tensor]:
        logs = given.log_softmax(-1)
        return logs.gather(-1, ids[:, None])[:, 0], -(logs.exp() * logs).sum(-1)

    return call


def from_logits(ids: Tensor) -> dict[str, Callable[[], Scores]]:
    """Entropies carry a gradient, but for prime-rl's, which has none."""

    def areal() -> Scores:
        inner = compiled(released("areal", "_gather_logprobs_entropy", AREAL))
        compute = released("areal", "gather_logprobs_entropy", AREAL, _gather_logprobs_entropy=inner)
        return lambda given: compute(given, ids)

    def slime(chunk: int) -> Callable[[], Scores]:
        def make() -> Scores:
            compute = checkout("slime", "calculate_log_probs_and_entropy", SLIME)

            def call(given: Tensor) -> tuple[Tensor, Tensor]:
                own, entropy = compute(given, ids, None, with_entropy=True, chunk_size=chunk)
                return own.reshape(-1), entropy.reshape(-1)

            return call

        return make

    def prime() -> Scores:
        own = compiled(checkout("prime-rl", "selective_log_softmax", PRIME_LOSS), dynamic=True)
        entropy = compiled(checkout("prime-rl", "compute_entropy", PRIME_LOSS), dynamic=True)
        return lambda given: (own(given[None], ids[None])[0], entropy(given[None])[0])

    def openrlhf() -> Scores:
        own = released("openrlhf", "log_probs_from_logits", OPENRLHF)
        entropy = compiled(released("openrlhf", "compute_entropy", OPENRLHF))
        return lambda given: (own(given, ids), entropy(given))

    def trl() -> Scores:
        compute = released("trl", "selective_log_softmax_and_entropy", "trl/trainer/utils.py")
        return lambda given: compute(given, ids)

    found: dict[str, Callable[[], Scores]] = {f"AReaL{COMPILED}": areal}
    if has_checkout("slime"):
        found |= {"slime": slime(-1), "slime, chunks of 128": slime(128)}
    if has_checkout("prime-rl"):
        found[f"prime-rl{COMPILED}"] = prime
    return found | {f"OpenRLHF{COMPILED}": openrlhf, "TRL": trl, "log_softmax": lambda: plain(ids)}


def from_hidden(hidden: Tensor, weight: Tensor, ids: Tensor) -> dict[str, Maker]:
    """Forward and backward of the log-probs; entropies are computed and carry no gradient (prime-rl's cannot)."""

    def prime(chunk: int) -> Maker:
        def make() -> Timed:
            head = checkout("prime-rl", "FusedOutputLinear", PRIME_HEAD)(hidden.shape[1], weight.shape[0], chunk)
            head.weight = torch.nn.Parameter(weight.detach())
            states, ones = hidden.detach().requires_grad_(), torch.ones(1, len(ids))

            def run() -> None:
                head(states[None], ids[None], ones)["logprobs"].sum().backward()
                states.grad = head.weight.grad = None

            return run

        return make

    def naive() -> Timed:
        states, head = hidden.detach().requires_grad_(), weight.detach().requires_grad_()

        def run() -> None:
            own, entropy = plain(ids)(states @ head.T)
            _ = entropy.detach()
            own.sum().backward()
            states.grad = head.grad = None

        return run

    found: dict[str, Maker] = {}
    if has_checkout("prime-rl"):
        found = {"prime-rl, chunks of 256": prime(256), "prime-rl, as it ships": prime(8192)}
    return found | {"linear and log_softmax": naive}


def timed(make: Callable[[], Scores], logits: Tensor, *, with_backward: bool, is_compiled: bool) -> Timed:
    """One call on the logits, with the gradient of the sum of the log-probs and a little entropy if asked for."""
    call = make()

    def run() -> None:
        own, entropy = call(logits)
        if with_backward:
            (own.sum() + 0.01 * entropy.sum()).backward()
            logits.grad = None

    return acted(run) if is_compiled else run
