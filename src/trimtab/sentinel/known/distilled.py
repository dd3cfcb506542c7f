"""Divergences of a student from its teacher over the whole vocabulary."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known, Values


def divergences(temperatures: Sequence[float], numbers: Sequence[float]) -> Iterator[Known]:
    """One number per token, at every temperature, with and without its square."""
    for heat in dict.fromkeys((1.0, *temperatures)):
        told = f" at temperature {heat:g}" if heat != 1 else ""
        for name, of in _at(heat, numbers):
            yield Known(f"{name}{told}", of, slopes=True)
            if heat != 1:
                yield Known(f"{heat:g}² × {name}{told}", lambda c, f=of, h=heat: h * h * f(c), slopes=True)


def _at(heat: float, numbers: Sequence[float]) -> Iterator[tuple[str, Values]]:
    def sides(c: Cells) -> tuple[Tensor, Tensor]:
        student, teacher = (
            c.held(f"{name} at {heat:g}", lambda n=name: torch.log_softmax(c[n] / heat, -1))
            for name in ("logits", "teacher_logits")
        )
        return student, teacher

    def forward(c: Cells) -> Tensor:
        student, teacher = sides(c)
        return (teacher.exp() * (teacher - student)).sum(-1)

    def reverse(c: Cells) -> Tensor:
        student, teacher = sides(c)
        return (student.exp() * (student - teacher)).sum(-1)

    yield "KL(teacher to student)", forward
    yield "KL(student to teacher)", reverse
    yield "cross entropy of teacher and student", lambda c: -(sides(c)[1].exp() * sides(c)[0]).sum(-1)
    yield "total variation of teacher and student", lambda c: (sides(c)[1].exp() - sides(c)[0].exp()).abs().sum(-1) / 2
    for share in dict.fromkeys((0.5, *(n for n in numbers if 0 < n < 1))):

        def mixed(c: Cells, b: float = share) -> Tensor:
            student, teacher = sides(c)
            middle = torch.logsumexp(torch.stack([student + _log(1 - b), teacher + _log(b)]), 0)
            up = (teacher.exp() * (teacher - middle)).sum(-1)
            return b * up + (1 - b) * (student.exp() * (student - middle)).sum(-1)

        yield f"JSD({share:g}) of teacher and student", mixed
        yield (
            f"{share:g} × KL(teacher to student) + {1 - share:g} × KL(student to teacher)",
            lambda c, b=share: b * forward(c) + (1 - b) * reverse(c),
        )


def _log(share: float) -> Tensor:
    return torch.tensor(share, dtype=torch.float64).log()


def with_labels(temperatures: Sequence[float], numbers: Sequence[float]) -> Iterator[Known]:
    """The loss of Hinton et al.: a share of the divergence, and the rest of the cross entropy of the labels."""

    def labels(c: Cells) -> Tensor:
        scores = torch.log_softmax(c["logits"], -1)
        return -scores.gather(-1, c["token_id"].long().unsqueeze(-1)).squeeze(-1)

    for one in divergences(temperatures, ()):
        for share in (n for n in numbers if 0 < n < 1):
            yield Known(
                f"{share:g} × {one.name} + {1 - share:g} × cross entropy of the labels",
                lambda c, o=one, a=share: a * o.of(c) + (1 - a) * labels(c),
            )
            yield Known(
                f"cross entropy of the labels + {share:g} × {one.name}",
                lambda c, o=one, a=share: a * o.of(c) + labels(c),
            )
