"""The only place that says what the live guard looks at in a training step: tensors, a loss, each effect."""

from collections.abc import Callable, Mapping

from torch import Tensor

from trimtab.signal import Decided, SignalBatch, token_loss
from trimtab.signal.update import Ledger, MicroBatch


def watched_fields(batch: SignalBatch) -> dict[str, Tensor]:
    """All tensors of a batch, not copies of them: a write into a copy would not show."""
    held = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    return {name: value for name, value in held.items() if isinstance(value, Tensor)} | dict(batch.extra)


def stage_effects(metrics: Mapping[str, float]) -> dict[str, float]:
    """What each correction did by itself. An importance may change every token, but it must change some."""
    alone = {name.removesuffix("/alone"): value for name, value in metrics.items() if name.endswith("/alone")}
    return {
        name: value if value == 0 or name.startswith("keep.") else 0.5  # neither nothing nor everything
        for name, value in alone.items()
    }


def loss_of_rows(decided: Decided, said: Callable[[Tensor], Mapping[str, Tensor]]) -> Callable[[Tensor], Tensor]:
    """The loss of some sequences of an update, from the numbers that the model just `said`. It runs no model."""

    def loss(rows: Tensor) -> Tensor:
        part = decided.whole.take(rows)
        now = said(part.sequences)
        micro = MicroBatch(part, 1, Ledger())
        return token_loss(micro, now["logp_current"], entropy=now["entropy"], value=now.get("value_current")).loss

    return loss
