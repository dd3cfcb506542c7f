"""Recipes replay from plain data: values, places, checks, verdicts, and the shipped ones."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.sentinel.findings.decode import Decoder, NotData
from trimtab.sentinel.findings.encode import CannotEncode, Encoder
from trimtab.sentinel.findings.recipes import shipped
from trimtab.sentinel.findings.replay import main, replay
from trimtab.sentinel.invariants.declare import INVARIANTS
from trimtab.sentinel.loading import Spec

SOURCE = """
import enum

import torch
from heavy.absent import world


class Mode(enum.Enum):
    HALF = 1


class Scaler:
    def __init__(self, config):
        raise RuntimeError("needs a cluster")

    def scaled(self, values):
        return values * self.factor


def decide(args, advantages):
    return torch.cat([(one >= 0).float() for one in advantages]), len(advantages)


def shaped(data, coef):
    kl = data["logp"] - data["ref"]
    data["kl"] = kl
    kl *= -coef
    data["reward"] = kl + world.bonus()


def squared(values, mode=None):
    return {"loss": (values**2).sum(), "half": mode is Mode.HALF}


def written(values):
    values.clamp_(max=0)


def added(first, second):
    first += 1
    return second.sum()
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "losses.py").write_text(SOURCE)
    return tmp_path


def tensor(values: list[Any], **more: Any) -> dict[str, Any]:
    return {"tensor": "float64", "shape": [len(values)], "values": values, **more}


def recipe(name: str, *calls: dict[str, Any], checks: list[Any], **more: Any) -> dict[str, Any]:
    boundary = {"name": name, "file": "pkg/losses.py", "how": "cut", **more.pop("boundary", {})}
    return {
        "kind": "trimtab_recipe", "version": 1, "bug_id": "one", "target": {"name": "pkg", "repository": ""},
        "boundary": boundary, "scenario": {"words": "", "calls": list(calls)}, "expected_invariant": "it holds",
        "invariant": "split", "checks": checks, "observed": None, **more,
    }  # fmt: skip


def returned(*path: Any, call: int = 0, **more: Any) -> dict[str, Any]:
    return {"call": call, "of": "returned", "path": list(path), **more}


# --- values -----------------------------------------------------------------------------------------


def test_values_survive_the_way_through_json() -> None:
    shared = torch.tensor([1.0, float("nan")], dtype=torch.float32)
    values = [
        None, True, 3, 0.1, float("-inf"), "word", [1, (2, 3)], {"a": {4}, 5: "x"}, shared, shared,
        torch.tensor([[True]]), torch.zeros(0, 2), torch.tensor([1.5]).expand(3), torch.float16, torch.device("cpu"),
        torch.tensor([0.1], dtype=torch.bfloat16), lambda: 7,
    ]  # fmt: skip
    data = json.loads(json.dumps(Encoder().call(values, {}), allow_nan=False))
    decoder = Decoder()
    back = [decoder.value(one) for one in data["args"]]
    assert back[:8] == values[:8]
    assert back[8] is back[9]
    assert back[8].dtype == torch.float32
    assert bool(back[8][1].isnan())
    assert back[10].dtype == torch.bool
    assert back[11].shape == (0, 2)
    assert back[12].stride() == (0,)
    assert back[13] == torch.float16
    assert torch.equal(back[15], values[15])
    assert back[16]() == 7


def test_what_has_no_form_as_data_is_refused() -> None:
    for value in (open, lambda x: x + 1, torch.ones(1).to_sparse(), object()):
        with pytest.raises(CannotEncode):
            Encoder().value(value)
    with pytest.raises(NotData, match="not allowed in a reproduction file"):
        Decoder().value({"function": "os.system"})
    with pytest.raises(NotData, match="there is no tag"):
        Decoder().value({"pickle": "…"})


# --- checks -----------------------------------------------------------------------------------------


def test_a_mixed_decision_is_reproduced_with_the_position_that_leaks(target: Path) -> None:
    call = {"args": [{"namespace": {}}, [tensor([-1.0, 0.25, -0.5])]]}
    payload = replay(recipe("decide", call, checks=[{"op": "constant", "of": returned(0)}]), target)
    assert payload["status"] == "reproduced"
    assert payload["quiet_training_signal_bug"] is True
    assert payload["observed_with_perturbation"] == [0, 1, 0]
    assert payload["training_signal_effect"] == {"leaked_positions": [1], "leaked_token_count": 1, "non_crash": True}


def test_the_same_recipe_says_fixed_after_the_repair(target: Path) -> None:
    call = {"args": [{"namespace": {}}, [tensor([-1.0, 0.25, -0.5])]]}
    file = target / "pkg" / "losses.py"
    file.write_text(SOURCE.replace("(one >= 0).float()", "(one.mean() >= 0).float().expand_as(one)"))
    payload = replay(recipe("decide", call, checks=[{"op": "constant", "of": returned(0)}]), target)
    assert (payload["status"], payload["quiet_training_signal_bug"]) == ("fixed", False)


def test_a_record_kept_among_the_arguments_is_read_after_the_call(target: Path) -> None:
    data = {"dict": {"logp": tensor([0.5, 0.7]), "ref": tensor([0.4, 0.5])}}
    given = {"heavy.absent.world": {"namespace": {"bonus": {"function": "always", "returns": 1.0}}}}
    place = {"call": 0, "of": "argument", "path": [0, "kl"]}
    one = recipe("shaped", {"args": [data, 0.05]}, checks=[{"op": "equal", "of": place, "value": [0.1, 0.2]}],
                 boundary={"given": given})  # fmt: skip
    payload = replay(one, target)
    assert payload["status"] == "reproduced"
    assert payload["observed_with_perturbation"] == pytest.approx([-0.005, -0.01])


def test_gradients_are_read_at_the_tokens_of_an_argument(target: Path) -> None:
    call = {"args": [[tensor([1.0, 2.0]), tensor([3.0], requires_grad=True)]]}
    source = SOURCE.replace("(values**2).sum()", "(torch.cat(values)**2).sum()")
    (target / "pkg" / "losses.py").write_text(source)
    place = returned("loss", of="gradient", with_respect_to=[0], index=[2])
    for value, status in (([6.0], "fixed"), ([5.0], "reproduced")):
        assert (
            replay(recipe("squared", call, checks=[{"op": "equal", "of": place, "value": value}]), target)["status"]
            == status
        )
    silent = returned("loss", of="gradient", with_respect_to=[0], index=[0, 1])
    assert replay(recipe("squared", call, checks=[{"op": "zero", "of": silent}]), target)["status"] == "fixed"
    assert replay(recipe("squared", call, checks=[{"op": "connected", "of": silent}]), target)["status"] == "reproduced"


@pytest.mark.parametrize(
    ("values", "check", "status"),
    [
        ([1.0, "nan"], {"op": "finite"}, "reproduced"),
        ([1.0, 2.0], {"op": "finite"}, "fixed"),
        ([2.0, 2.0], {"op": "at_most", "value": 8.0}, "fixed"),
        ([2.0, 2.1], {"op": "at_most", "value": 8.0}, "reproduced"),
    ],
)
def test_values_are_held_to_bounds(target: Path, values: list[Any], check: dict[str, Any], status: str) -> None:
    one = recipe("squared", {"args": [tensor(values)]}, checks=[{**check, "of": returned("loss")}])
    assert replay(one, target)["status"] == status


def test_an_argument_written_to_is_seen(target: Path) -> None:
    check = {"op": "unchanged", "of": {"call": 0, "of": "argument", "path": [0]}}
    assert replay(recipe("written", {"args": [tensor([1.0])]}, checks=[check]), target)["status"] == "reproduced"
    assert replay(recipe("written", {"args": [tensor([-1.0])]}, checks=[check]), target)["status"] == "fixed"


def test_the_same_tensor_passed_twice_stays_one(target: Path) -> None:
    alias = {"args": [tensor([1.0], id=0), {"shared": 0}]}
    apart = {"args": [tensor([1.0]), tensor([1.0])]}
    check = {"op": "equal", "of": returned(call=0), "with": returned(call=1)}
    assert replay(recipe("added", alias, apart, checks=[check]), target)["observed_with_perturbation"] == [2.0]


def test_parts_are_summed_with_their_weights(target: Path) -> None:
    calls = [{"args": [tensor(values)]} for values in ([1.0, 2.0], [1.0], [2.0])]
    parts = {"sum": [returned("loss", call=1), returned("loss", call=2)], "factors": [1.0, 1.0]}
    check = {"op": "equal", "of": parts, "with": returned("loss")}
    assert replay(recipe("squared", *calls, checks=[check]), target)["status"] == "fixed"
    check["of"]["factors"] = [0.5, 0.5]
    assert replay(recipe("squared", *calls, checks=[check]), target)["status"] == "reproduced"


def test_objects_and_enums_of_the_target_are_made_without_constructors(target: Path) -> None:
    actor = {"object": "Scaler", "attributes": {"factor": 3.0}}
    check = {"op": "equal", "of": returned(), "value": [6.0]}
    assert (
        replay(recipe("Scaler.scaled", {"args": [actor, tensor([2.0])]}, checks=[check]), target)["status"] == "fixed"
    )
    mode = {"args": [tensor([2.0]), {"enum": "Mode", "member": "HALF"}]}
    check = {"op": "equal", "of": returned("half"), "value": [1.0]}
    assert replay(recipe("squared", mode, checks=[check]), target)["status"] == "fixed"


def test_one_check_that_fails_among_others_is_enough(target: Path) -> None:
    checks = [{"op": "finite", "of": returned("loss")}, {"op": "zero", "of": returned("loss")}]
    payload = replay(recipe("squared", {"args": [tensor([2.0])]}, checks=checks), target)
    assert payload["status"] == "reproduced"
    assert [one["holds"] for one in payload["checks"]] == [True, False]


# --- verdicts -----------------------------------------------------------------------------------------


def test_without_checks_the_recorded_numbers_stand_for_the_bug(target: Path) -> None:
    one = recipe("squared", {"args": [tensor([2.0])]}, checks=[])
    one["observed"] = [{"returned": [4.0, 0.0], "arguments": [2.0]}]
    payload = replay(one, target)
    assert payload["status"] == "reproduced"
    assert "trimtab check --recipe" in payload["note"]
    one["observed"][0]["returned"] = [5.0, 0.0]
    assert replay(one, target)["status"] == "changed"


@pytest.mark.parametrize("name", ["nowhere", "shaped"])
def test_what_cannot_be_called_is_said_and_is_no_pass(target: Path, name: str) -> None:
    payload = replay(recipe(name, {"args": [1]}, checks=[]), target)
    assert payload["status"] == "could not run"
    assert payload["reason"]
    assert payload["training_signal_effect"]["non_crash"] is False
    assert replay(recipe("squared", checks=[]), target / "absent")["status"] == "could not run"


def test_the_command_writes_sorted_json_and_ends_with_its_verdict(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = recipe("squared", {"args": [tensor([2.0])]}, checks=[{"op": "zero", "of": returned("loss")}])
    (target / "recipe.json").write_text(json.dumps(one))
    monkeypatch.chdir(target)
    monkeypatch.setenv("RECIPE", str(target / "recipe.json"))
    monkeypatch.delenv("TARGET_REPO", raising=False)
    monkeypatch.delenv("OUTPUT_JSON", raising=False)
    assert main([]) == 1
    text = (target / "validation-output.json").read_text()
    assert capsys.readouterr().out == text
    payload = json.loads(text)
    assert list(payload) == sorted(payload)
    assert {"kind", "candidate_id", "target", "target_commit", "boundary", "observed_baseline",
            "observed_with_perturbation", "difference", "quiet_training_signal_bug", "status", "observed",
            "training_signal_effect"} <= set(payload)  # fmt: skip
    assert payload["kind"] == "rl_sentinel_training_signal_validation"
    (target / "pkg" / "losses.py").write_text(SOURCE.replace("(values**2)", "(0 * values)"))
    assert main([]) == 0
    (target / "pkg" / "losses.py").unlink()
    assert main([]) == 2


# --- what ships -----------------------------------------------------------------------------------------


def test_shipped_recipes_are_well_formed() -> None:
    found = shipped()
    assert [name.split("_")[0] for name in found] == ["s1", "s3", "s4"]
    for name, one in found.items():
        assert one["bug_id"] == name
        assert (one["kind"], one["version"], one["validation_mode"]) == ("trimtab_recipe", 1, "boundary_calls")
        assert one["invariant"] in INVARIANTS
        for boundary in (one["boundary"], *one.get("other_boundaries", {}).values()):
            Spec.from_data({key: value for key, value in boundary.items() if key != "given"})
        assert set(one["observed"]) == set(one["observations"]) == set(one["expected"])
        assert one["observed"] != one["expected"]
        decoder = Decoder(lambda _: type("Made", (), {}))
        for call in one["scenario"]["calls"]:
            assert [decoder.value(argument) for argument in call["args"]]


OPSM = """
import torch


def compute_opsm_mask(args, full_log_probs, full_old_log_probs, advantages, loss_masks):
    kept, rejected = [], torch.tensor(0.0)
    for now, old, advantage, mask in zip(full_log_probs, full_old_log_probs, advantages, loss_masks):
        drift = ((old - now) * mask).sum() / mask.sum()
        reject = (DECIDING < 0) & (drift > args.opsm_delta)
        reject = reject.float().expand_as(advantage)
        rejected += reject.sum() / mask.sum()
        kept.append(1 - reject)
    return torch.cat(kept), rejected


def compute_policy_loss(ppo_kl, advantages, eps_clip, eps_clip_high):
    ratio = (-ppo_kl).exp()
    clipped = ratio.clamp(1 - eps_clip, 1 + eps_clip_high)
    return torch.maximum(-ratio * advantages, -clipped * advantages), None
"""


def test_the_first_source_replays_with_its_numbers_on_a_function_of_its_shape(tmp_path: Path) -> None:
    file = tmp_path / "slime" / "utils" / "ppo_utils.py"
    file.parent.mkdir(parents=True)
    one = shipped()["s1_slime_opsm_decides_per_token"]
    file.write_text(OPSM.replace("DECIDING", "advantage"))
    payload = replay(one, tmp_path)
    assert payload["status"] == "reproduced"
    assert payload["training_signal_effect"]["leaked_positions"] == [1]
    for name, values in one["observed"].items():
        assert payload["observed"][name] == pytest.approx(values, abs=1e-8)
    file.write_text(OPSM.replace("DECIDING", "(advantage * mask).sum()"))
    payload = replay(copy.deepcopy(one), tmp_path)
    assert payload["status"] == "fixed"
    for name, values in one["expected"].items():
        assert payload["observed"][name] == pytest.approx(values, abs=1e-8)
