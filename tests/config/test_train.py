import pytest
from pydantic import ValidationError

from trimtab.config.train import EarlyStop, ModelSettings, TrainSettings
from trimtab.errors import ConfigError


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": 0}, "TrainSettings: steps = 0 is not possible: input should be greater than or equal to 1."),
        ({"seed": -1}, "seed = -1 is not possible: input should be greater than or equal to 0."),
        ({"temperature": 0.0}, "temperature = 0.0 is not possible: input should be greater than 0."),
        ({"lr": float("nan")}, "lr = nan is not possible: input should be"),
        ({"grad_clip": float("inf")}, "grad_clip = inf is not possible: input should be a finite number."),
        (
            {"samples_per_prompt": 0},
            "samples_per_prompt = 0 is not possible: input should be greater",
        ),
        ({"learning_rate": 1e-3}, "there is no key 'learning_rate'; "),
        (
            {"early_stop": {"accuracy": 1.5}},
            "early_stop.accuracy = 1.5 is not possible: input should be less",
        ),
        ({"self": 1}, "there is no key 'self'"),
        ({"early_stop": "sometimes"}, "early_stop = 'sometimes' is not possible: input should be 'never'"),
        (
            {"prompts_per_step": 2, "updates_per_batch": 3},
            "updates_per_batch 3 is more than prompts_per_step 2, so some",
        ),
        ({"model": {"hidden_size": 30, "num_heads": 4}}, "hidden_size 30 is not a multiple of 2 x num_heads = 8"),
    ],
)
def test_senseless_values_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
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
