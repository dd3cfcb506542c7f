"""Training against servers: every prompt once, whatever the server does, or a sentence that says what is wrong."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.lookalike import Lookalike

from trimtab.config.train import LoraSettings
from trimtab.errors import ConfigError, TrimtabError
from trimtab.rollout import http, probe
from trimtab.rollout.loop import Loop
from trimtab.train import TrainSettings, train
from trimtab.train.policy import Policy, save
from trimtab.train.record.replay import read_dump
from trimtab.train.runtimes import distant
from trimtab.train.show.progress import Silent

pytestmark = pytest.mark.usefixtures("undrawn_here")
STEPS = 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookalike computes in float32, where fewer tokens tell as much; and nobody waits for a server."""
    monkeypatch.setattr(probe, "ROWS", 6)
    monkeypatch.setattr(distant, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(http, "PAUSE", 0.01)
    monkeypatch.setenv("TRIMTAB_TOKEN", "right")


class Served:
    """Lookalikes in a thread of their own."""

    def __init__(self, policy: Policy, folder: Path, count: int, **given: Any) -> None:
        self.loop = Loop()
        made = [Lookalike(policy, folder, token="right", **given) for _ in range(count)]
        self.likes = [self.loop.start(like.__aenter__()).result() for like in made]

    def stop(self) -> None:
        async def kill() -> None:
            for like in self.likes:
                like.kill()

        self.loop.run(kill())
        self.loop.close()

    def restart(self, like: Lookalike) -> None:
        """As kill -9 and a new start at the same address: the parameters of the folder, no label."""

        async def again() -> None:
            like.kill()
            like.fresh()
            _ = await like.__aenter__()

        self.loop.run(again())


@contextmanager
def served(
    policy: Policy, tmp_path: Path, *, count: int = 1, faults: str = "", times: int = 0, rank: int = 0
) -> Iterator[Served]:
    save(policy, tmp_path / "model")
    started = Served(policy, tmp_path / "model", count, faults=faults, times=times, rank=rank)
    try:
        yield started
    finally:
        started.stop()


def settings_for(small: TrainSettings, tmp_path: Path, urls: list[str]) -> TrainSettings:
    given: dict[str, Any] = small.model_dump()
    task = {**given["task"], "reward": f"{Path(__file__).parent}/rewards.py:odd"}
    given |= {
        "model": {"path": tmp_path / "model"}, "engine": {"name": "vllm", "servers": urls}, "runtime": "processes",
        "warm_start_steps": 0, "steps": STEPS, "staleness": 1, "dump_batches": True, "run_dir": tmp_path / "run",
        "checkpoint_every": 0, "eval_every": 100, "task": task,
    }  # fmt: skip
    return TrainSettings(**given)


def tickets(run: Path) -> list[list[int]]:
    return [read_dump(run, step).rollouts.tickets for step in range(STEPS)]


def proofs(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "proofs.jsonl").read_text().splitlines()]


EVERY_ONCE = [[4 * step + one for one in range(4)] for step in range(STEPS)]


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_trains_on_every_prompt_once_with_proven_parameters(
    policy: Policy, small: TrainSettings, tmp_path: Path, count: int
) -> None:
    with served(policy, tmp_path, count=count) as there:
        urls = [like.url for like in there.likes]
        summary = train(settings_for(small, tmp_path, urls), "grpo", progress=Silent())
    assert summary.steps == STEPS
    assert summary.decode == "vLLM lookalike, float32"
    assert tickets(tmp_path / "run") == EVERY_ONCE
    shown = proofs(tmp_path / "run")
    assert {proof["verdict"] for proof in shown} == {"proven"}
    assert {proof["server"] for proof in shown} == set(urls)
    for step in range(STEPS):  # what was recorded is what the stamped version computes
        dump = read_dump(tmp_path / "run", step)
        fresh = dump.rollouts.version == step
        assert bool(fresh.any()) or step > 0
        gap = (dump.fields["logp_old"] - dump.rollouts.logp_rollout)[fresh].abs()
        assert not len(gap) or float(gap.max()) < 1e-4
    assert not list((tmp_path / "run").glob(".sampler"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [8, 0], ids=["adapters alone", "merged copies"])
def test_an_adapter_reaches_a_server_alone_where_it_can_and_merged_where_it_cannot(
    policy: Policy, small: TrainSettings, tmp_path: Path, rank: int
) -> None:
    with served(policy, tmp_path, rank=rank) as there:
        settings = settings_for(small, tmp_path, [there.likes[0].url])
        model = settings.model.model_copy(update={"lora": LoraSettings(rank=4)})
        _ = train(settings.model_copy(update={"model": model, "lr": 2e-2}), "grpo", progress=Silent())
        assert bool(there.likes[0].counted["/v1/load_lora_adapter"]) == bool(rank)
    assert tickets(tmp_path / "run") == EVERY_ONCE
    assert {proof["verdict"] for proof in proofs(tmp_path / "run")} == {"proven"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["busy", "breaks", "truncated", "half_json", "duplicated"])
def test_a_fault_that_passes_costs_no_prompt_and_doubles_none(
    policy: Policy, small: TrainSettings, tmp_path: Path, fault: str
) -> None:
    with served(policy, tmp_path, faults=fault, times=2) as there:
        summary = train(settings_for(small, tmp_path, [there.likes[0].url]), "grpo", progress=Silent())
        assert there.likes[0].counted[fault] == 2
    assert summary.steps == STEPS
    assert tickets(tmp_path / "run") == EVERY_ONCE


@pytest.mark.slow
def test_a_server_that_restarts_with_old_parameters_is_used_again_when_it_has_proven_new_ones(
    policy: Policy, small: TrainSettings, tmp_path: Path
) -> None:
    class Restarting(Silent):
        def step(self, line: Mapping[str, object]) -> None:
            if not done:
                done.append(True)
                there.restart(there.likes[0])

    done: list[bool] = []
    with served(policy, tmp_path) as there:
        summary = train(settings_for(small, tmp_path, [there.likes[0].url]), "grpo", progress=Restarting())
    assert done
    assert summary.steps == STEPS
    assert tickets(tmp_path / "run") == EVERY_ONCE
    assert proofs(tmp_path / "run")[-1]["verdict"] == "proven"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("tokenizer", "tokenizer"),
        ("template", "template"),
        ("raw", "processed_logprobs"),
        ("warmer", "temperature"),
        ("old_parameters", "old parameters"),
        ("stale_cache", "cache"),
        ("half_of_them", "refused"),
        ("no_stop_logp", "log-prob"),
    ],
)
def test_a_fault_that_stays_ends_the_run_with_a_sentence(
    policy: Policy, small: TrainSettings, tmp_path: Path, fault: str, says: str
) -> None:
    with served(policy, tmp_path, faults=fault) as there:
        url = there.likes[0].url
        with pytest.raises(TrimtabError, match=says) as refused:
            _ = train(settings_for(small, tmp_path, [url]), "grpo", progress=Silent())
    assert url in str(refused.value)
    assert not (tmp_path / "run" / "batches").exists() or fault == "no_stop_logp"


def test_a_wrong_token_and_a_server_that_is_not_there_are_told(
    policy: Policy, small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distant, "COMES_BACK_SECONDS", 0.0)
    with served(policy, tmp_path) as there:
        url = there.likes[0].url
        os.environ["TRIMTAB_TOKEN"] = "wrong"
        with pytest.raises(TrimtabError, match=r"TRIMTAB_TOKEN|token"):
            _ = train(settings_for(small, tmp_path, [url]), "grpo", progress=Silent())
    again = settings_for(small, tmp_path, [url]).model_copy(update={"run_dir": tmp_path / "again"})
    with pytest.raises(TrimtabError, match="no batch can come"):
        _ = train(again, "grpo", progress=Silent())


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"name": "vllm"}, "servers"),
        ({"servers": ["http://127.0.0.1:8000"]}, "servers"),
        ({"name": "vllm", "servers": ["127.0.0.1:8000"]}, "plain address"),
        ({"name": "vllm", "servers": ["http://me:secret@127.0.0.1:8000"]}, "TRIMTAB_TOKEN"),
        ({"name": "vllm", "servers": ["http://a:1", "http://a:1"]}, "twice"),
        ({"name": "vllm", "servers": ["http://a:1"], "format": "int4"}, "format"),
        ({"name": "vllm", "servers": ["http://a:1"]}, "inline"),
    ],
)
def test_settings_that_leave_open_who_samples_are_refused(engine: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        _ = TrainSettings(engine=engine)  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)
