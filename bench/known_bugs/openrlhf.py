"""Known bugs of OpenRLHF: rows, all of them by bindings of the ready target."""

from bench.known_bugs.row import Row
from trimtab.sentinel.targets.openrlhf import TARGET
from trimtab.sentinel.targets.target import Binding

REPOSITORY = "OpenRLHF/OpenRLHF"


def of(name: str) -> Binding:
    """A binding of the ready target."""
    return next(binding for binding in TARGET.bindings if binding.name == name)


def _row(
    name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: Binding, note: str = ""
) -> Row:
    return Row(name, "openrlhf", REPOSITORY, buggy, fixed, invariants, binding, note)


ROWS: list[Row] = [
    _row("ORLHF-PPOKL", "30a02e9c8", "feeb02838", ("metric_truth",), of("PolicyLoss.forward")),
    _row("ORLHF-PPOKL-CLAMP", "df78645ec", "3a9815c51", ("metric_truth",), of("PolicyLoss.forward")),
    _row("ORLHF-KL-BF16", "f96a48ba8", "f34ef60ac", ("half_precision",), of("compute_approx_kl")),
    _row("HEAD-ORLHF-SEQMASKTIS", "3c3be6234", None, ("importance_contract",), of("PolicyLoss.forward[correction]")),
]
