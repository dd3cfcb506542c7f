"""A field of a recipe holds what it is declared to hold; nothing that looks like it is taken for it."""

from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import KL, Part, Stage, catalogue, part, recipe
from trimtab.signal.catalogue import of
from trimtab.signal.layout import Keep, PerToken, TokenIndex
from trimtab.signal.stages import logratio

CLIP = part("policy_loss.clipped")
BAND = Stage(part("keep.token_band", band=(0.5, 2.0)), ratio="engine")
WRONG: list[tuple[str, Any]] = [
    ("name", 3), ("source", None), ("summary", 3),
    ("filter_constant_groups", "false"), ("whiten", "no"), ("whiten", 1), ("allow_double_count", None),
    ("not_ended", "supress"), ("old", "recomputed"),
    ("weighting", "token_mean"), ("normalize", None), ("advantage", Stage(CLIP, anchor="old")),
    ("loss", CLIP), ("reward", part("reward.affine")), ("reward", (BAND,)), ("reward", [part("reward.affine")]),
    ("correction", BAND), ("correction", [BAND]), ("correction", (BAND.part,)),
    ("kl", 0.04), ("kl", part("kl.k3")), ("entropy", 0.01), ("value", 0.5), ("nll", 1.0),
    ("group_mean_band", ("a", "b")), ("group_mean_band", (False, True)), ("group_mean_band", (0.0, 1.0, 2.0)),
    ("group_mean_band", (1.0, 0.0)), ("group_mean_band", (0.5, 0.5)), ("clip_advantage", "5"), ("clip_advantage", True),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{f}-{type(v).__name__}" for f, v in WRONG])
def test_a_field_of_the_wrong_kind_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(SignalError, match=field):
        replace(recipe("tis"), **{field: value})


def test_fields_of_the_right_kind_are_taken() -> None:
    right = {
        "reward": (part("reward.affine"), part("reward.clip", low=0.0, high=1.0)), "correction": (BAND, BAND),
        "whiten": True, "clip_advantage": 5, "kl": None, "not_ended": "suppress",
    }  # fmt: skip
    made = replace(recipe("tis"), **right)
    assert {name: getattr(made, name) for name in right} == right


@trimtab.formula(source="a test", stage="keep", scope="token", promises=())
def young(version: TokenIndex) -> tuple[Keep, dict[str, torch.Tensor]]:
    """Reads no policy at all."""
    return version > 3, {}


@trimtab.formula(source="a test", stage="keep", scope="token", promises=())
def likely(logp_old: PerToken) -> tuple[Keep, dict[str, torch.Tensor]]:
    """Reads the old policy by name, without a ratio."""
    return logp_old > -9, {}


@pytest.mark.parametrize(
    ("formula", "old", "late"),
    [(young, "recompute", False), (young, "current", False), (likely, "recompute", False), (likely, "current", True)],
)
def test_without_a_ratio_a_stage_is_late_when_it_reads_an_old_policy_that_moves(
    formula: Any, old: str, late: bool
) -> None:
    chosen = recipe("reinforce", correction=(Stage(Part(of(formula), {})),), old=old)
    assert chosen.is_late(chosen.correction[0]) is late
    assert ("logp_old" in chosen.needs) is (formula is likely and old == "recompute")
    assert ("version" in chosen.needs) is (formula is young)


@pytest.mark.parametrize("missing", ["formula", "coef", "into"])
def test_a_kl_that_a_recipe_does_not_have_is_written_whole(missing: str) -> None:
    table = {"formula": "k3", "coef": 0.1, "into": "loss"}
    assert recipe("reinforce", kl=table).kl == KL(part("kl.k3"), 0.1, "loss")
    del table[missing]
    with pytest.raises(SignalError, match="the recipe has no KL to change"):
        recipe("reinforce", kl=table)


def test_a_kl_that_changes_in_part_keeps_its_anchor() -> None:
    before, after = recipe("deepseek_v32").kl, recipe("deepseek_v32", kl={"coef": 0.5}).kl
    assert before.anchor == after.anchor == "rollout"


@pytest.mark.parametrize(("ratio", "missing"), [("engine", "old"), ("engine", "rollout"), ("update", "old")])
def test_a_log_ratio_without_one_of_its_ends_is_none(ratio: str, missing: str) -> None:
    available = {f"logp_{name}": torch.zeros(2) for name in ("current", "old", "rollout") if name != missing}
    assert logratio(ratio, available) is None


def test_an_anchor_of_a_kl_is_one_of_two_words() -> None:
    with pytest.raises(SignalError, match="anchor = 'odl'"):
        KL(part("kl.importance_weighted_k3"), 0.1, "loss", anchor="odl")


def test_a_formula_of_the_package_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def k1(logp_current: PerToken, logp_ref: PerToken) -> PerToken:
        """A second one of that name."""
        return logp_current - logp_ref

    k1.__module__ = "trimtab.signal.kl"
    with pytest.raises(SignalError, match=r"kl\.k1: is defined twice"):
        trimtab.formula(source="a test", scope="token", promises=())(k1)
    other = catalogue.find("kl.k2")
    monkeypatch.setattr(catalogue, "_installed", lambda: {"kl.k1": other})
    with pytest.raises(SignalError, match=r"entry points \['kl\.k1'\] take names of built-in formulas"):
        catalogue.catalog()


@pytest.mark.parametrize("number", [numpy.float64(0.25), torch.tensor(0.25, dtype=torch.float64)])
def test_a_number_of_numpy_or_torch_is_a_number(number: Any) -> None:
    settings = part("reward.affine", bias=number).settings
    assert type(settings["bias"]) is float
    assert settings["bias"] == 0.25


@pytest.mark.parametrize("band", [numpy.array([0.5, 2.0]), torch.tensor([0.5, 2.0]), [numpy.float32(0.5), 2]])
def test_a_pair_of_numbers_is_a_band(band: Any) -> None:
    assert part("keep.token_band", band=band).settings["band"] == (0.5, 2.0)


@pytest.mark.parametrize("numbers", [numpy.array([0.25]), torch.tensor([0.25])])
def test_a_list_of_one_number_is_no_number(numbers: Any) -> None:
    with pytest.raises(SignalError, match="bias"):
        part("reward.affine", bias=numbers)


def test_a_formula_of_an_unknown_scope_is_refused() -> None:
    with pytest.raises(SignalError, match="scope"):
        trimtab.formula(source="a test", stage="kl", scope="tokens", promises=())(lambda logp_current: logp_current)


@pytest.mark.parametrize(
    "number", [torch.ones((), device="meta"), torch.ones(1).to_sparse(), torch.ones((), dtype=torch.complex64)]
)
def test_a_tensor_that_holds_no_plain_number_is_no_setting(number: torch.Tensor) -> None:
    with pytest.raises(SignalError, match=r"^reward\.affine: setting bias: .* cannot be computed with"):
        part("reward.affine", bias=number)
