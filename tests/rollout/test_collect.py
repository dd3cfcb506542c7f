"""Tickets to groups, with the real engine, the real tasks and the real rewards."""

import torch
from torch import Tensor

from trimtab.config.train import ModelSettings, TaskSettings, TrainSettings
from trimtab.rollout.collect import Collector
from trimtab.rollout.engine import Greedy, Sample, Sampling
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.weights import digest
from trimtab.train.policy import Policy, new_policy, published
from trimtab.train.setup import new_collector


def collector(task: TaskSettings, **changed: object) -> tuple[Collector, Policy]:
    from trimtab.rollout.task import open_task

    settings = TrainSettings(
        task=task,
        model=ModelSettings(hidden_size=32, num_layers=1, num_heads=2, mlp_size=64),
        samples_per_prompt=3,
        max_new_tokens=6,
    ).model_copy(update=changed)
    policy = new_policy(settings.model, open_task(task, 0).alphabet, seed=0)
    built = new_collector(policy, settings)
    state = published(policy.model)
    built.engine.load(state, 7, digest(state))
    return built, policy


def test_groups_come_in_the_order_of_their_tickets_with_what_the_engine_said() -> None:
    built, policy = collector(TaskSettings(name="sort", size=3))
    rollouts = built.collect([5, 2])
    assert rollouts.tickets == [5, 2]
    assert rollouts.ticket.tolist() == [5, 5, 5, 2, 2, 2]
    assert rollouts.statuses() == {"ok": 6}
    assert rollouts.version.unique().tolist() == [7]
    for group in rollouts.groups():
        ticket = group.tickets[0]
        assert group.prompts == {ticket: built.task.train(ticket).text}
        for ids, trains in zip(*cut_up(group), strict=True):
            assert policy.tokenizer.decode(ids[~trains]) == group.prompts[ticket]


def cut_up(rollouts: Rollouts) -> tuple[list[Tensor], list[Tensor]]:
    lengths = rollouts.length.tolist()
    return list(rollouts.ids.split(lengths)), list(rollouts.trainable.split(lengths))


def test_an_answer_depends_on_run_ticket_and_sample_and_not_on_its_neighbours() -> None:
    built, _ = collector(TaskSettings(name="sort", size=3))
    together = built.collect([0, 1, 2])
    alone = built.collect([2])
    assert torch.equal(together.groups()[2].ids, alone.ids)
    answers = [tuple(ids.tolist()) for ids in cut_up(together)[0]]
    assert len(set(answers)) == len(answers)  # an untrained policy repeats itself only by a broken stream


class Scripted:
    """An engine that says what it was told to, whoever asks; it stands for a policy that knows the task."""

    version = 1
    dtype = "fp32"

    def __init__(self, policy: Policy, answers: list[str]) -> None:
        self._ids = [(*policy.tokenizer.encode(text, add_special_tokens=False), policy.eos_id) for text in answers]
        self.asked: list[tuple[int, ...]] = []

    def load(self, state: object, version: int, digest: str) -> None:
        raise AssertionError

    def sample(self, requests, how: Sampling | Greedy) -> list[Sample]:  # type: ignore[no-untyped-def]
        self.asked += [request.ids for request in requests]
        ids = self._ids.pop(0)
        logp = torch.full((len(ids),), -0.5)
        return [Sample(ids=ids, logp=logp, version=(1,) * len(ids), finish="eos") for _ in requests]


def test_an_observation_is_read_and_never_trains() -> None:
    from dataclasses import replace

    built, policy = collector(TaskSettings(name="calculator", size=9), samples_per_prompt=1)
    problem = built.task.train(0)
    call, answer = built.task.demonstration(problem)
    engine = Scripted(policy, [call, answer])
    episode = replace(built, engine=engine, samples_per_prompt=1).collect([0])
    assert episode.reward.tolist() == [1.0]
    assert episode.turn.unique().tolist() == [0, 1]
    assert policy.tokenizer.decode(episode.ids[episode.trainable]) == f"{call}<eos>{answer}<eos>"
    read = policy.tokenizer.decode(list(engine.asked[1]))  # what the policy saw before its second turn
    observation = built.task.environment(problem).step(call, ended=True).observation
    assert observation
    assert read == f"{problem.text}{call}<eos>{observation}"


def test_an_episode_ends_after_its_last_turn_whatever_the_environment_says() -> None:
    from dataclasses import replace

    built, policy = collector(TaskSettings(name="calculator", size=9, max_turns=1))
    call = built.task.demonstration(built.task.train(0))[0]
    episode = replace(built, engine=Scripted(policy, [call])).collect([0])
    assert episode.turn.unique().tolist() == [0]
    assert bool(episode.trainable[-1])
