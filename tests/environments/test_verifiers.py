"""A real verifiers environment: its harness asks over its own loopback server, our engine answers with token ids."""

from pathlib import Path
from typing import Any

import pytest
from tests.environments.conftest import settings

from trimtab.config.train import TaskSettings
from trimtab.errors import ConfigError
from trimtab.rollout.task import open_task
from trimtab.rollout.tasks.verifiers_client import EngineClient, Talk, _refusal, install
from trimtab.train import train
from trimtab.train.record.replay import Dump, read_dump
from trimtab.train.record.verify import verify_run
from trimtab.train.show.progress import Silent

pytestmark = [pytest.mark.environments, pytest.mark.usefixtures("beside_the_environments")]
STEPS = 20


def task(**options: Any) -> TaskSettings:
    return TaskSettings(name="verifiers.digit_tasks", max_turns=2, options=options)


def text_of(dump: Dump, row: int, tokenizer: Any, *, trained: bool) -> str:
    rollouts = dump.rollouts
    span = slice(int(rollouts.first_id[row]), int(rollouts.first_id[row + 1]))
    ids = rollouts.ids[span]
    return tokenizer.decode(ids[rollouts.trainable[span]] if trained else ids)


@pytest.mark.parametrize("runtime", ["inline", "processes"])
def test_it_trains_and_its_batches_hold(model: Path, tmp_path: Path, runtime: str) -> None:
    changed = {"runtime": runtime, "staleness": 2 if runtime == "processes" else 0}
    _ = train(settings(model, tmp_path / "run", task(), **changed), progress=Silent())
    found = verify_run(tmp_path / "run")
    assert (found.faults, found.skipped, len(found.steps), found.sequences) == ((), (), STEPS, STEPS * 16)
    means = [read_dump(tmp_path / "run", step).rollouts.reward_mean for step in range(STEPS)]
    print("reward by step:", [round(mean, 3) for mean in means])
    assert sum(means[-5:]) > sum(means[:5])  # a seeded run: more of the characters are the wanted digit
    last = read_dump(tmp_path / "run", STEPS - 1).rollouts
    assert dict(last.statuses()) == {"ok": 16}
    assert set(last.turn.tolist()) == {0, 1}


def test_what_trains_is_what_was_sampled_and_the_rest_is_the_chat(model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    _ = train(settings(model, tmp_path / "run", task(), steps=1), progress=Silent())
    tokenizer = AutoTokenizer.from_pretrained(model)
    dump = read_dump(tmp_path / "run", 0)
    prompts = dict(dump.rollouts.prompts)
    for row in range(dump.rollouts.num_sequences):
        prompt = prompts[int(dump.rollouts.ticket[row])]
        whole, trained = (text_of(dump, row, tokenizer, trained=one) for one in (False, True))
        assert whole.startswith(f"{prompt}\nassistant: ")
        assert "\nuser: more\nassistant: " in whole
        assert len(whole) - len(trained) == len(f"{prompt}\nassistant: ") + len("\nuser: more\nassistant: ")


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ({"taskset.does": "raises"}, "error", "boom"),
        ({"taskset.does": "rewrites"}, "error", "does not continue what the policy read and wrote"),
        ({"taskset.does": "sleeps", "agent.timeout.rollout": 0.3}, "timeout", ""),
    ],
)
def test_their_failures_are_outcomes_that_neither_vote_nor_train(
    model: Path, tmp_path: Path, options: dict[str, Any], status: str, said: str
) -> None:
    _ = train(settings(model, tmp_path / "run", task(**options), steps=1, prompts_per_step=2), progress=Silent())
    rollouts = read_dump(tmp_path / "run", 0).rollouts
    assert dict(rollouts.statuses()) == {status: 8}
    assert all(said in text for text in rollouts.messages.values())
    assert not bool(rollouts.scored.any())


def test_a_taskset_that_is_not_there_is_refused_with_the_options() -> None:
    with pytest.raises(ConfigError, match=r"verifiers refuses it with the options \{\}.*not found"):
        open_task(TaskSettings(name="verifiers.nobody_wrote_this"), 0)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="verifiers refuses it"):
        open_task(task(**{"agent.max_turnz": 3}), 0)


def test_their_own_clients_are_still_made() -> None:
    import verifiers.v1.interception.server as server
    from verifiers.v1.clients import EvalClient, EvalClientConfig

    client = EngineClient()
    assert server.resolve_client(install(client)) is client
    assert isinstance(server.resolve_client(EvalClientConfig(base_url="http://127.0.0.1:1")), EvalClient)


def test_a_call_of_an_episode_that_is_over_is_refused() -> None:
    assert "was not started by trimtab" in _refusal(None, {}, object())
    assert "streams" in _refusal(Talk(ask=None), {"stream": True}, object())  # type: ignore[arg-type]
