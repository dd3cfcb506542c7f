"""Functions as in tutorials and notebooks: short names, everything in a few lines."""

import torch
from torch import nn


class ActorCriticLoss(nn.Module):
    """The three parts of PPO in one number, as in the paper."""

    def __init__(self, clip_coef: float = 0.2, vf_coef: float = 0.5, ent_coef: float = 0.01) -> None:
        super().__init__()
        self.clip_coef = clip_coef
        self.vf_coef = vf_coef
        self.ent_coef = ent_coef

    def forward(
        self,
        newlogprob: torch.Tensor,
        oldlogprob: torch.Tensor,
        advantages: torch.Tensor,
        newvalue: torch.Tensor,
        returns: torch.Tensor,
        entropy: torch.Tensor,
        mask: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        n = mask.sum().clamp(min=1)
        logratio = newlogprob - oldlogprob
        ratio = logratio.exp()
        pg_loss1 = -advantages * ratio
        pg_loss2 = -advantages * torch.clamp(ratio, 1 - self.clip_coef, 1 + self.clip_coef)
        pg_loss = (torch.max(pg_loss1, pg_loss2) * mask).sum() / n
        v_loss = 0.5 * ((newvalue - returns) ** 2 * mask).sum() / n
        entropy_loss = (entropy * mask).sum() / n
        loss = pg_loss - self.ent_coef * entropy_loss + v_loss * self.vf_coef
        with torch.no_grad():
            approx_kl = (((ratio - 1) - logratio) * mask).sum() / n
        return {"loss": loss, "pg_loss": pg_loss, "v_loss": v_loss, "entropy": entropy_loss, "approx_kl": approx_kl}


def scan(r: torch.Tensor, v: torch.Tensor, m: torch.Tensor, g: float = 0.99, lam: float = 0.95) -> torch.Tensor:
    """Backwards over the columns; where m is 0 there is nothing to do."""
    n, width = r.shape
    on = m.bool()
    acc = torch.zeros(n, dtype=r.dtype)
    nxt = torch.zeros(n, dtype=r.dtype)
    out = []
    for t in reversed(range(width)):
        step = r[:, t] + g * nxt - v[:, t] + g * lam * acc
        acc = torch.where(on[:, t], step, acc)
        nxt = torch.where(on[:, t], v[:, t], nxt)
        out.append(torch.where(on[:, t], acc, 0.0))
    return torch.stack(out[::-1], dim=1).detach()


def objective(
    lp: torch.Tensor, lp_beh: torch.Tensor, A: torch.Tensor, w: torch.Tensor, eps: float = 0.2
) -> torch.Tensor:
    """What to minimise: one mean per answer, then the mean of the answers."""
    w = w.bool()
    rho = torch.exp(torch.where(w, lp - lp_beh, 0.0))
    A = A[:, None]
    gain = torch.min(rho * A, rho.clamp(1 - eps, 1 + eps) * A)
    per_answer = torch.where(w, gain, 0.0).sum(1) / w.sum(1).clamp(min=1)
    return -per_answer.mean()


def upto(ids: torch.Tensor, stop: int) -> torch.Tensor:
    """1 for every id up to the first stop, with the stop itself."""
    is_stop = (ids == stop).long()
    return (is_stop.cumsum(dim=1) - is_stop == 0).long()
