from trimtab.rollout.task import Problem, Reverse
from trimtab.train.policy import Policy
from trimtab.train.warmstart import answered, warm_start


def test_right_answers_train_and_prompts_do_not(policy: Policy) -> None:
    given = answered(policy, [Problem("12=", "21"), Problem("345=", "543")])
    for ids, trainable, prompt, answer in zip(given.ids, given.trainable, ("12=", "345="), ("21", "543"), strict=True):
        assert policy.tokenizer.decode(ids[~trainable]) == prompt
        assert policy.tokenizer.decode(ids[trainable]) == f"{answer}<eos>"


def test_supervised_steps_lower_the_loss(policy: Policy) -> None:
    first = warm_start(policy, Reverse(2), steps=1, lr=2e-3, seed=0)
    last = warm_start(policy, Reverse(2), steps=15, lr=5e-3, seed=1)
    assert last < 0.6 * first


def test_it_stops_when_asked(policy: Policy) -> None:
    before = [parameter.clone() for parameter in policy.model.parameters()]
    _ = warm_start(policy, Reverse(2), steps=5, lr=2e-3, seed=0, stopped=lambda: True)
    assert all((a == b).all() for a, b in zip(before, policy.model.parameters(), strict=True))
