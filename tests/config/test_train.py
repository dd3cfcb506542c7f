import pytest
from pydantic import ValidationError

from trimtab.config.train import EarlyStop, ModelSettings, TrainSettings


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": 0}, "steps\n  Input should be greater than or equal to 1"),
        ({"seed": -1}, "seed\n  Input should be greater than or equal to 0"),
        ({"temperature": 0.0}, "temperature\n  Input should be greater than 0"),
        ({"lr": float("nan")}, "lr\n  Input should be"),
        ({"grad_clip": float("inf")}, "grad_clip\n  Input should be a finite number"),
        ({"samples_per_prompt": 0}, "samples_per_prompt\n  Input should be greater than or equal to 1"),
        ({"learning_rate": 1e-3}, "learning_rate\n  Extra inputs are not permitted"),
        ({"early_stop": {"accuracy": 1.5}}, "Input should be less than or equal to 1"),
        ({"early_stop": "sometimes"}, "Input should be 'never'"),
        (
            {"prompts_per_step": 2, "updates_per_batch": 3},
            "updates_per_batch 3 is more than prompts_per_step 2, so some",
        ),
        ({"model": {"hidden_size": 30, "num_heads": 4}}, "hidden_size 30 is not a multiple of 2 x num_heads = 8"),
    ],
)
def test_senseless_values_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        _ = TrainSettings(**changed)  # pyright: ignore[reportArgumentType]
    assert said in str(refusal.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="Instance is frozen"):
        TrainSettings().seed = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_early_stop_is_a_rule_or_never() -> None:
    assert TrainSettings(early_stop="never").early_stop == "never"
    assert TrainSettings().early_stop == EarlyStop(accuracy=0.98, evaluations=2)


def test_every_field_says_what_it_is() -> None:
    for settings in (TrainSettings, ModelSettings, EarlyStop):
        for name, field in settings.model_fields.items():
            assert field.description, f"{settings.__name__}.{name}"
