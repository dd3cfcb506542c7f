"""A real OpenEnv environment, in this process and behind its server on loopback."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.environments.conftest import settings

from trimtab.config.train import TaskSettings
from trimtab.errors import ConfigError
from trimtab.rollout.driven import Said
from trimtab.rollout.task import open_task
from trimtab.rollout.tasks.openenv import OpenEnvEpisode, Options
from trimtab.train import train
from trimtab.train.record.replay import read_dump
from trimtab.train.record.verify import verify_run
from trimtab.train.show.progress import Silent

pytestmark = [pytest.mark.environments, pytest.mark.usefixtures("beside_the_environments")]
STEPS = 20
SHOWN = {"action": "text", "observation": "said"}


def task(**options: Any) -> TaskSettings:
    return TaskSettings(name="openenv", max_turns=3, options={**SHOWN, **options})


@pytest.fixture
def url(beside_the_environments: None) -> Iterator[str]:
    """The environment's own server, on loopback, at a free port."""
    import digit_environment
    import uvicorn

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(digit_environment.serve(), host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


def holds(folder: Path, steps: int) -> None:
    found = verify_run(folder)
    assert (found.faults, found.skipped, len(found.steps), found.sequences) == ((), (), steps, steps * 16)


@pytest.mark.parametrize("runtime", ["inline", "processes"])
def test_it_trains_and_its_batches_hold(model: Path, tmp_path: Path, runtime: str) -> None:
    given = task(environment="digit_environment:Digits")
    changed = {"runtime": runtime, "staleness": 2 if runtime == "processes" else 0}
    _ = train(settings(model, tmp_path / "run", given, **changed), progress=Silent())
    holds(tmp_path / "run", STEPS)
    means = [read_dump(tmp_path / "run", step).rollouts.reward_mean for step in range(STEPS)]
    print("reward by step:", [round(mean, 3) for mean in means])
    assert sum(means[-5:]) > sum(means[:5])  # a seeded run: turns end, and hold more digits
    last = read_dump(tmp_path / "run", STEPS - 1).rollouts
    assert dict(last.statuses()) == {"ok": 16}
    assert max(last.turn.tolist()) >= 1


def test_behind_a_server_the_same_episodes_are_played(model: Path, tmp_path: Path, url: str) -> None:
    for name, given in {"there": task(url=url), "here": task(environment="digit_environment:Digits")}.items():
        _ = train(settings(model, tmp_path / name, given, steps=3), progress=Silent())
        holds(tmp_path / name, 3)
    one, other = (read_dump(tmp_path / name, 0).rollouts for name in ("there", "here"))
    assert one.reward.tolist() == other.reward.tolist()
    assert one.ids.tolist() == other.ids.tolist()


def test_a_server_that_is_not_there_costs_its_episodes_and_not_the_run(model: Path, tmp_path: Path) -> None:
    _ = train(settings(model, tmp_path / "run", task(url="http://127.0.0.1:1"), steps=1), progress=Silent())
    rollouts = read_dump(tmp_path / "run", 0).rollouts
    assert dict(rollouts.statuses()) == {"error": 16}
    assert "Connect" in rollouts.messages[0]


def test_a_field_that_the_environment_does_not_show_is_refused(model: Path, tmp_path: Path) -> None:
    given = task(environment="digit_environment:Digits", observation="sad")
    with pytest.raises(ConfigError, match=r"observation is 'sad' and the environment shows \['said'\]"):
        train(settings(model, tmp_path / "run", given, steps=1), progress=Silent())


def test_an_environment_that_cannot_be_made_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="has no 'Digitz'"):
        open_task(task(environment="digit_environment:Digitz"), 0)


def test_tools_are_offered_called_and_answered() -> None:
    heard: list[tuple[Any, Any]] = []
    texts = ['<tool_call>{"name": "double", "arguments": {"number": 21}}</tool_call>', "<tool_call>{</tool_call>", "42"]

    async def ask(new: Any, tools: Any = ()) -> Said:
        heard.append((new, tools))
        return Said(texts[len(heard) - 1], True, 1, 1)

    episode = OpenEnvEpisode(Options(environment="digit_tools:Doubles", tools=True), 0, 3)
    outcome = asyncio.run(episode.drive(ask))
    ((tool,), *_) = [tools for _, tools in heard]
    assert tool["function"]["name"] == "double"
    assert tool["function"]["parameters"]["properties"]["number"]["type"] == "integer"
    assert heard[1][0] == ({"role": "tool", "content": "42"},)
    assert heard[2][0] == ({"role": "tool", "content": "the call is not JSON"},)
    assert (outcome.status, outcome.reward) == ("ok", 0.0)
