"""Adapters published alone to a server: what is sent, what is proven, and every way in which one does not arrive."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rollout.lookalike import Lookalike, asynchronous
from tests.rollout.test_remote import HOW, PROMPT, connect, few_rows, folder
from torch import Tensor

from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.adapter import Adapter, read_adapter
from trimtab.rollout.engine import Request
from trimtab.rollout.place import Place
from trimtab.rollout.publication import Publication
from trimtab.rollout.remote import Remote
from trimtab.rollout.score import ModelScores, Row
from trimtab.train.policy import Policy, published

__all__ = ["few_rows", "folder"]
RANK = 2


def adapter(policy: Policy, version: int, rank: int = RANK) -> Adapter:
    """The adapter after some steps of training; before the first, B is 0."""
    state: dict[str, Tensor] = {}
    random = torch.Generator().manual_seed(0)
    for name, tensor in published(policy.model).items():
        if name.endswith("_proj.weight"):
            home = f"base_model.model.{name.removesuffix('.weight')}"
            state[f"{home}.lora_A.weight"] = 0.3 * torch.randn(rank, tensor.shape[1], generator=random)
            steps = torch.randn(8, tensor.shape[0], rank, generator=random)
            state[f"{home}.lora_B.weight"] = 0.003 * steps[:version].sum(0)
    targets = sorted(name.split(".")[-3] for name in state if "lora_A" in name)
    return Adapter(state, {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": targets})


def version_of(policy: Policy, version: int, rank: int = RANK) -> Publication:
    own = adapter(policy, version, rank)
    return Publication(version, own.merged(published(policy.model)), own)


async def served(like: Lookalike, place: Path, **given: Any) -> Remote:
    engine = await connect(like, place, **given)
    assert await engine.load(version_of(like.policy, 0)) == 0
    return engine


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


@asynchronous
async def test_only_the_adapter_is_published_and_tokens_are_those_of_its_version(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder, rank=8) as like:
        engine = await served(like, tmp_path / "versions")
        assert like.counted["/collective_rpc"] == 2  # a decoy of the model and the model, once
        for version in (1, 2, 3):
            assert await engine.load(version_of(policy, version)) == version
            samples = await asyncio.gather(*(engine.generate(Request(PROMPT, seed), HOW) for seed in range(20)))
            rows = [Row(PROMPT, sample.ids) for sample in samples]
            found = torch.cat([sample.logp for sample in samples])
            scores = ModelScores(policy.model)
            states = [version_of(policy, one).state for one in (version - 1, version)]
            torch.testing.assert_close(found, scores(states[1], rows, 0.7), atol=1e-5, rtol=0)
            assert (found - scores(states[0], rows, 0.7)).abs().max() > 1e-3
            assert {one for sample in samples for one in sample.version} == {version}
            assert like.sent[-1]["model"].startswith(f"adapter_{version:06d}.")
            assert [name.split(".")[0] for name in like.adapters] == [f"adapter_{version:06d}"]  # the others are gone
        assert like.counted["/collective_rpc"] == 2
        assert [proof.verdict for proof in engine.proofs] == ["proven"] * 7  # two decoys, the model, four versions
        assert names(tmp_path / "versions") == ["adapter_000002", "adapter_000003", "base", "decoy", "decoy_adapter"]
        sent = tmp_path / "versions" / "adapter_000003"
        assert names(sent) == ["adapter_config.json", "adapter_model.safetensors"]
        assert read_adapter(sent).digest == adapter(policy, 3).digest


@asynchronous
async def test_a_load_stops_what_is_answered_and_stamps_what_there_is(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder, rank=8) as like:
        engine = await served(like, tmp_path / "versions")
        like.hold.clear()
        early = [asyncio.create_task(engine.generate(Request(PROMPT, seed), HOW)) for seed in range(3)]
        while like.running < 3:
            await asyncio.sleep(0)
        loading = asyncio.create_task(engine.load(version_of(policy, 1)))
        stopped = await asyncio.gather(*early)
        like.hold.set()
        late = asyncio.create_task(engine.generate(Request(PROMPT, 9), HOW))
        assert await loading == 1
        assert [(sample.finish, set(sample.version)) for sample in stopped] == [("abort", {0})] * 3
        assert set((await late).version) == {1}


@asynchronous
async def test_one_asked_again_for_an_adapter_that_was_replaced_meanwhile_comes_back_empty_to_be_asked_anew(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder, rank=8) as like:
        engine = await served(like, tmp_path / "versions")
        loaded = asyncio.Event()

        async def until_loaded(_: float) -> None:
            await loaded.wait()

        engine._server._sleep = until_loaded
        like.faults, like.times = {"breaks"}, 1
        early = asyncio.create_task(engine.generate(Request(PROMPT, 0), HOW))
        while not like.counted["breaks"]:
            await asyncio.sleep(0)
        assert await engine.load(version_of(policy, 1)) == 1
        loaded.set()
        sample = await early
        assert (sample.ids, sample.version, sample.finish) == ((), (), "abort")
        assert engine.version == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("old_adapter", "it still computes with the old parameters"),
        pytest.param("no_adapter", "is refused and the server answers nothing", marks=pytest.mark.slow),
        pytest.param("half_of_it", "it computes with a mixture", marks=pytest.mark.slow),
        pytest.param("one_cache stale_cache", "took 16 tokens of the next prompt from it", marks=pytest.mark.slow),
        pytest.param(
            "one_cache stale_cache_silent", "is refused and the server answers nothing", marks=pytest.mark.slow
        ),
        ("renamed", "and answered with 'base', so the tokens are another policy's"),
        ("no_updates", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
    ],
)
@asynchronous
async def test_an_adapter_that_does_not_arrive_is_refused(
    fault: str, said: str, policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder, rank=8) as like:
        engine = await served(like, tmp_path / "versions")
        like.faults = set(fault.split())
        with pytest.raises(EngineError, match=said):
            await engine.load(version_of(policy, 1))
        assert engine.version == -1
        like.faults = set()
        assert await engine.load(version_of(policy, 1)) == 1


@pytest.mark.parametrize(
    "fault",
    [
        "no_adapter",
        "warmer",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("old_adapter", "half_of_it", "old_parameters")),
    ],
)
@asynchronous
async def test_the_first_version_is_proven_too_although_a_new_adapter_changes_nothing(
    fault: str, policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder, faults=fault, rank=8) as like:
        engine = await connect(like, tmp_path / "versions")
        with pytest.raises(EngineError):
            await engine.load(version_of(policy, 0))
        assert engine.version == -1


@asynchronous
async def test_an_adapter_whose_confirmation_was_lost_is_not_an_error(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder, rank=8) as like:
        engine = await served(like, tmp_path / "versions")
        like.faults, like.times = {"loaded_but_busy"}, 1
        assert await engine.load(version_of(policy, 1)) == 1
        assert like.counted["loaded_but_busy"] == 1


@asynchronous
async def test_a_restarted_server_does_not_know_the_adapter_and_gets_the_model_again(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder, rank=8) as like:
        engine = await served(like, tmp_path / "versions")
        like.fresh()
        with pytest.raises(EngineError, match=r"does not exist.*the server restarted.*Load the version again"):
            await engine.generate(Request(PROMPT, 0), HOW)
        assert engine.version == -1
        assert await engine.load(version_of(policy, 0)) == 0
        assert like.counted["/collective_rpc"] == 4
        assert set((await engine.generate(Request(PROMPT, 0), HOW)).version) == {0}


@pytest.mark.parametrize("rank", [0, 1])
@asynchronous
async def test_a_server_without_room_for_the_adapter_gets_a_merged_copy(
    rank: int, policy: Policy, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Lookalike(policy, folder, rank=rank) as like:
        with caplog.at_level(logging.WARNING):
            engine = await served(like, tmp_path / "versions")
        assert ("Start it with --lora-rank 2" in caplog.text) == bool(rank)
        assert await engine.load(version_of(policy, 1)) == 1
        assert names(tmp_path / "versions") == ["decoy", "version_000000", "version_000001"]
        assert "model" not in like.sent[-1]


def test_a_model_that_is_not_the_one_beneath_the_adapter_is_refused(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    own = adapter(policy, 1)
    base = {name: tensor + 1e-3 for name, tensor in published(policy.model).items()}
    with pytest.raises(EngineError, match="is not what version 1 has beneath its adapter"):
        Place(tmp_path, folder).put_base(Publication(1, own.merged(base), own))
    strange = Adapter({name.replace("mlp", "other"): tensor for name, tensor in own.state.items()}, own.config)
    with pytest.raises(EngineError, match=r"other.*is not what version 1 has beneath its adapter"):
        Place(tmp_path, folder).put_base(Publication(1, own.merged(published(policy.model)), strange))


def test_a_folder_of_an_adapter_is_whole_or_absent(policy: Policy, folder: Path, tmp_path: Path) -> None:
    place, own = Place(tmp_path / "versions", folder), adapter(policy, 1)
    assert own.digest
    next(iter(own.state.values())).add_(1)
    with pytest.raises(StaleWeights, match=r"changed while it was written.*Publication.copy"):
        place.put_adapter(1, own)
    assert not list(place.folder.iterdir())
    path = place.put_adapter(1, adapter(policy, 1))
    (path / "adapter_model.safetensors").write_bytes(b"half")
    with pytest.raises(StaleWeights, match="damaged or cut short"):
        read_adapter(path)


def test_a_copy_is_not_changed_by_the_next_step(policy: Policy) -> None:
    publication = version_of(policy, 1)
    kept = publication.copy()
    assert kept.adapter is not None
    assert publication.adapter is not None
    before = kept.adapter.digest
    next(iter(publication.adapter.state.values())).add_(1)
    assert Adapter(kept.adapter.state, kept.adapter.config).digest == before
