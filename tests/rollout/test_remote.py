"""An engine that is a server: what it is asked, what is stamped, and every fault that must be caught by name."""

import asyncio
import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rollout.lookalike import LENGTH, SLOTS, Lookalike, asynchronous
from torch import Tensor

from trimtab.errors import DiskError, EngineError, StaleWeights
from trimtab.rollout import probe
from trimtab.rollout.engine import Greedy, Request, Sampling
from trimtab.rollout.http import Server
from trimtab.rollout.meet import Language
from trimtab.rollout.place import Place, read_state
from trimtab.rollout.publication import Publication
from trimtab.rollout.remote import Remote
from trimtab.rollout.score import ModelScores, Row
from trimtab.train.policy import Policy, published, save

HOW = Sampling(12, 0.7)
PROMPT = (3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 4)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookalike computes in float32, where fewer tokens tell as much."""
    monkeypatch.setattr(probe, "ROWS", 6)


@pytest.fixture(scope="module")
def folder(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "model"
    save(policy, path)
    return path


async def no_sleep(_: float) -> None:
    await asyncio.sleep(0)


def language(policy: Policy) -> Language:
    return Language(policy.tokenizer, len(policy.tokenizer), policy.eos_ids, LENGTH)


async def connect(like: Lookalike, place: Path, *, token: str = "", timeout: float = 30, slots: int = 0) -> Remote:
    server = Server(like.url, token=token, timeout=timeout, patience=30, sleep=no_sleep)
    scores = ModelScores(like.policy.model)
    return await Remote.connect(
        server, place=Place(place, like.folder), scores=scores, language=language(like.policy), slots=slots
    )


def moved(policy: Policy, step: int) -> dict[str, Tensor]:
    """Parameters after some steps of training: each step goes its own way."""
    state = {name: tensor.clone() for name, tensor in published(policy.model).items()}
    for number in range(step):
        random = torch.Generator().manual_seed(number)
        for name in state:
            state[name] += 1e-3 * torch.randn(state[name].shape, generator=random)
    return state


async def served(like: Lookalike, place: Path, **given: Any) -> Remote:
    """An engine that holds version 0."""
    engine = await connect(like, place, **given)
    assert await engine.load(Publication(0, moved(like.policy, 0))) == 0
    return engine


# ------------------------------------------------------------------------------------------------------ as it should be


@asynchronous
async def test_tokens_carry_the_log_probs_and_the_version_of_the_parameters_that_scored_them(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        assert (engine.version, engine.dtype, engine.slots) == (0, "float32", SLOTS)
        for version in (1, 2):
            assert await engine.load(Publication(version, moved(policy, version))) == version
            samples = await asyncio.gather(*(engine.generate(Request(PROMPT, seed), HOW) for seed in range(20)))
            rows = [Row(PROMPT, sample.ids) for sample in samples]
            found = torch.cat([sample.logp for sample in samples])
            scores = ModelScores(policy.model)
            torch.testing.assert_close(found, scores(moved(policy, version), rows, 0.7), atol=1e-5, rtol=0)
            assert (found - scores(moved(policy, version - 1), rows, 0.7)).abs().max() > 1e-3
            assert {one for sample in samples for one in sample.version} == {version}
            assert {sample.finish for sample in samples} == {"eos", "length"}
            assert all((sample.ids[-1] == policy.eos_id) == (sample.finish == "eos") for sample in samples)
        assert [proof.verdict for proof in engine.proofs] == ["proven"] * 4  # a decoy, then three versions
        assert all(abs(proof.share - 1) < 1e-3 for proof in engine.proofs)
        greedy = await engine.generate(Request(PROMPT, 0), Greedy(4))
        assert greedy.logp.tolist() == [0.0] * len(greedy.ids)


@asynchronous
async def test_whatever_decides_a_draw_is_sent_with_the_request(policy: Policy, folder: Path, tmp_path: Path) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        await engine.generate(Request(PROMPT, 7), Sampling(12, 0.7, top_p=0.9, top_k=5))
        assert like.sent[-1]["token_ids"] == list(PROMPT)
        assert like.sent[-1]["sampling_params"] == {
            "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.0, "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "max_tokens": 12, "min_tokens": 0, "stop": [],
            "stop_token_ids": [policy.eos_id], "ignore_eos": True, "logprobs": 0, "seed": 7, "detokenize": False,
            "n": 1,
        }  # fmt: skip


@asynchronous
async def test_an_answer_ends_at_any_of_several_end_tokens(policy: Policy, folder: Path, tmp_path: Path) -> None:
    ends = (policy.eos_id, 7)
    async with Lookalike(policy, folder) as like:
        tongue = Language(policy.tokenizer, len(policy.tokenizer), ends, LENGTH)
        place, scores = Place(tmp_path / "versions", folder), ModelScores(policy.model)
        engine = await Remote.connect(Server(like.url, sleep=no_sleep), place=place, scores=scores, language=tongue)
        await engine.load(Publication(0, moved(policy, 0)))
        samples = [await engine.generate(Request(PROMPT, seed), Sampling(40, 0.7)) for seed in range(20)]
        assert like.sent[-1]["sampling_params"]["stop_token_ids"] == list(ends)
        assert {sample.ids[-1] for sample in samples if sample.finish == "eos"} == set(ends)
        assert not any(set(sample.ids[:-1]) & set(ends) for sample in samples)


@asynchronous
async def test_a_load_stops_what_is_answered_and_stamps_what_there_is(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        like.hold.clear()
        early = [asyncio.create_task(engine.generate(Request(PROMPT, seed), HOW)) for seed in range(3)]
        while like.running < 3:
            await asyncio.sleep(0)
        loading = asyncio.create_task(engine.load(Publication(1, moved(policy, 1))))
        stopped = await asyncio.gather(*early)
        like.hold.set()
        late = asyncio.create_task(engine.generate(Request(PROMPT, 9), HOW))
        assert await loading == 1
        assert [(sample.finish, set(sample.version)) for sample in stopped] == [("abort", {0})] * 3
        assert set((await late).version) == {1}


@asynchronous
async def test_no_more_requests_are_in_flight_than_slots(policy: Policy, folder: Path, tmp_path: Path) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions", slots=3)
        like.hold.clear()
        asked = [asyncio.create_task(engine.generate(Request(PROMPT, seed), HOW)) for seed in range(12)]
        for _ in range(1000):
            await asyncio.sleep(0)
        assert like.running == engine.slots == 3
        like.hold.set()
        await asyncio.gather(*asked)
        assert len({sample.result().ids for sample in asked}) == 12


@asynchronous
async def test_a_cancelled_request_gives_its_slot_back(policy: Policy, folder: Path, tmp_path: Path) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions", slots=1)
        like.hold.clear()
        waiting = asyncio.create_task(engine.generate(Request(PROMPT, 0), HOW))
        while not like.running:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        like.hold.set()
        assert (await engine.generate(Request(PROMPT, 1), HOW)).ids


@asynchronous
async def test_a_step_too_small_to_be_seen_is_unproven_and_small_steps_add_up(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        for version in (1, 2, 3):
            assert await engine.load(Publication(version, moved(policy, 0))) == version
            assert engine.proofs[-1].verdict == "unproven"
        kept = sorted(path.name for path in (tmp_path / "versions").iterdir())
        assert kept == ["decoy", "version_000000", "version_000002", "version_000003"]  # 0 was the last to be proven
        await engine.load(Publication(4, moved(policy, 1)))
        assert engine.proofs[-1].verdict == "proven"


# ------------------------------------------------------------------------------------------------- refused at the door

AT_THE_DOOR = {
    "raw": "same log-probs at temperature 1 and 0.5, so they are raw.*--logprobs-mode processed_logprobs",
    "square": "grew 4.00 times instead of 2",
    "template": "its chat template is another than ours",
    "tokenizer": "its tokenizer reads the ids 0 to 13 as another text than ours",
    "vocabulary": "its model does not have 14 ids as ours has",
    "eos": "its end token is '</s>' and ours is '<eos>'",
    "no_labels": "does not say which parameters chose its tokens",
    "no_tokenizer_info": "--enable-tokenizer-info-endpoint",
    "no_dev_mode": "VLLM_SERVER_DEV_MODE=1",
    "no_number": "is -9999.0, no number",
}


@pytest.mark.parametrize("fault", AT_THE_DOOR)
@asynchronous
async def test_a_server_of_another_language_is_refused_at_the_door(
    fault: str, policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder, faults=fault) as like:
        with pytest.raises(EngineError, match=AT_THE_DOOR[fault]):
            await connect(like, tmp_path)


@asynchronous
async def test_a_wrong_token_and_too_short_sequences_are_refused_at_the_door(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder, token="right") as like:
        await connect(like, tmp_path, token="right")
        with pytest.raises(EngineError, match=r"refuses our token \(HTTP 401\).*TRIMTAB_TOKEN"):
            await connect(like, tmp_path, token="wrong")
        server = Server(like.url, token="right")
        wide = Language(policy.tokenizer, len(policy.tokenizer), policy.eos_ids, LENGTH + 1)
        with pytest.raises(EngineError, match=f"--max-model-len {LENGTH + 1}"):
            await Remote.connect(server, place=Place(tmp_path, folder), scores=ModelScores(policy.model), language=wide)


# --------------------------------------------------------------------------------------------------- refused by a proof

BY_A_PROOF = {
    "stale_cache": "took 16 tokens of the next prompt from it",
    "stale_cache_silent": "it computes with a mixture: a prefix cache of old parameters",
    "old_parameters": "it still computes with the old parameters",
    "half_of_them": "it computes with a mixture",
    "reset_refused": "did not empty its prefix cache in 3 attempts",
    "warmer": "asked for temperature 0.8 and its log-probs are those of about 1.0",
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, marks=() if f in ("stale_cache", "old_parameters", "warmer") else pytest.mark.slow)
        for f in BY_A_PROOF
    ],
)
@asynchronous
async def test_what_does_not_arrive_is_refused_and_the_server_answers_nothing(
    fault: str, policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        like.faults = {fault}
        with pytest.raises(EngineError, match=BY_A_PROOF[fault]):
            await engine.load(Publication(1, moved(policy, 1)))
        assert engine.version == -1
        with pytest.raises(EngineError, match="version 1 did not arrive"):
            await engine.generate(Request(PROMPT, 0), HOW)
        like.faults = set()
        assert await engine.load(Publication(1, moved(policy, 1))) == 1


@pytest.mark.parametrize(
    "fault",
    [
        "stale_cache",
        "old_parameters",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("stale_cache_silent", "warmer")),
    ],
)
@asynchronous
async def test_the_first_version_is_proven_too(fault: str, policy: Policy, folder: Path, tmp_path: Path) -> None:
    """It was started with the very parameters that are loaded, so there is no old version: a decoy stands for it."""
    async with Lookalike(policy, folder, faults=fault) as like:
        engine = await connect(like, tmp_path / "versions")
        with pytest.raises(EngineError):
            await engine.load(Publication(0, moved(policy, 0)))
        assert engine.version == -1


@asynchronous
async def test_a_version_must_grow(policy: Policy, folder: Path, tmp_path: Path) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        with pytest.raises(StaleWeights, match="version 0 is not newer than 0"):
            await engine.load(Publication(0, moved(policy, 1)))
        assert (await engine.generate(Request(PROMPT, 0), HOW)).version[0] == 0


# ---------------------------------------------------------------------------------------------------- faults on the way


@pytest.mark.parametrize(
    "fault",
    ["busy", "breaks", "duplicated", *(pytest.param(f, marks=pytest.mark.slow) for f in ("truncated", "half_json"))],
)
@asynchronous
async def test_a_fault_that_passes_costs_nothing_and_one_that_stays_is_named(
    fault: str, policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        expected = [await engine.generate(Request(PROMPT, seed), HOW) for seed in range(4)]
        like.faults, like.times = {fault}, 2
        found = [await engine.generate(Request(PROMPT, seed), HOW) for seed in range(4)]
        assert like.counted[fault] == 2
        assert [sample.ids for sample in found] == [sample.ids for sample in expected]
        like.times = 0
        said = {"busy": "that it is busy .HTTP 503", "duplicated": "answers are repeated or mixed up"}
        with pytest.raises(EngineError, match=said.get(fault, "broke off 3 times")):
            await engine.generate(Request(PROMPT, 9), HOW)


@pytest.mark.parametrize(
    ("fault", "said"),
    [("no_stop_logp", "often the stop token has none"), ("no_stop_id", "the end token is missing")],
)
@asynchronous
async def test_an_end_token_without_id_or_log_prob_is_refused(
    fault: str, said: str, policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        like.faults = {fault}
        asked = [engine.generate(Request(PROMPT, seed), Sampling(60, 0.7)) for seed in range(4)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(said in str(one) for one in found if isinstance(one, EngineError))
        assert any(isinstance(one, EngineError) for one in found)


@asynchronous
async def test_a_server_that_does_not_answer_in_time_is_given_up(policy: Policy, folder: Path, tmp_path: Path) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions", timeout=0.5)
        like.hold.clear()
        with pytest.raises(EngineError, match=r"did not answer within 0\.5 seconds"):
            await engine.generate(Request(PROMPT, 0), HOW)
        like.hold.set()
        assert (await engine.generate(Request(PROMPT, 0), HOW)).ids


@asynchronous
async def test_a_killed_server_is_noticed_and_used_again_only_after_a_proof(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        await engine.load(Publication(1, moved(policy, 1)))
        like.hold.clear()
        asked = asyncio.create_task(engine.generate(Request(PROMPT, 0), HOW))
        while not like.running:
            await asyncio.sleep(0)
        like.kill()
        with pytest.raises(EngineError, match=re.escape(like.url) + ".*broke off 3 times.*trimtab serve"):
            await asked
        assert engine.version == -1
        like.hold.set()
        with pytest.raises(EngineError, match="broke off 3 times"):
            await engine.load(Publication(1, moved(policy, 1)))
        like.fresh()
        await like.__aenter__()
        with pytest.raises(EngineError, match="Load a version first"):
            await engine.generate(Request(PROMPT, 0), HOW)
        assert await engine.load(Publication(1, moved(policy, 1))) == 1
        assert set((await engine.generate(Request(PROMPT, 0), HOW)).version) == {1}


@asynchronous
async def test_a_restart_between_two_requests_is_seen_by_the_label(
    policy: Policy, folder: Path, tmp_path: Path
) -> None:
    """Nothing breaks: the connection was idle, and a supervisor started the server again with its old parameters."""
    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        await engine.load(Publication(1, moved(policy, 1)))
        like.fresh()
        with pytest.raises(StaleWeights, match="label 'default', which were never proven"):
            await engine.generate(Request(PROMPT, 0), HOW)
        with pytest.raises(EngineError, match="it holds parameters that we did not load"):
            await engine.generate(Request(PROMPT, 0), HOW)


@pytest.mark.parametrize(
    ("request_", "how", "said"),
    [
        (Request((), 0), HOW, "the prompt has 0 ids"),
        (Request((99,), 0), HOW, "the model knows 0 to 13"),
        (Request((3,) * 75, 0), HOW, "do not fit into the server's 80"),
        (Request((3,), 0), Sampling(4, 0.001), r"temperature of 0\.01 or more"),
        (Request((3,), 0), Sampling(4, 1.0, top_k=3, record_support=True), "cannot say which tokens"),
    ],
)
@asynchronous
async def test_what_a_server_would_answer_wrongly_is_not_asked(
    request_: Request, how: Sampling, said: str, policy: Policy, folder: Path, tmp_path: Path
) -> None:
    async with Lookalike(policy, folder) as like:
        engine = await connect(like, tmp_path)
        with pytest.raises(EngineError, match=said):
            await engine.generate(request_, how)


# ------------------------------------------------------------------------------------------------------ the folder


@asynchronous
async def test_a_full_disk_leaves_the_server_as_it_was(
    policy: Policy, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(DiskError, match=r"No space left on device.*all go on with the one before"):
                await engine.load(Publication(1, moved(policy, 1)))
        assert sorted(path.name for path in (tmp_path / "versions").iterdir()) == ["decoy", "version_000000"]
        assert set((await engine.generate(Request(PROMPT, 0), HOW)).version) == {0}
        assert await engine.load(Publication(1, moved(policy, 1))) == 1


@asynchronous
async def test_a_publication_that_is_damaged_on_the_way_is_refused(
    policy: Policy, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our check and the server's reading, half of the file is lost."""
    put = Place.put

    def halve(self: Place, publication: Publication, name: str = "") -> Path:
        path = put(self, publication, name)
        weights = path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        return path

    async with Lookalike(policy, folder) as like:
        engine = await served(like, tmp_path / "versions")
        with monkeypatch.context() as patch:
            patch.setattr(Place, "put", halve)
            with pytest.raises(EngineError, match="Worker failed with error"):
                await engine.load(Publication(1, moved(policy, 1)))
        assert engine.version == -1
        assert await engine.load(Publication(2, moved(policy, 2))) == 2


def test_a_folder_is_whole_or_absent(policy: Policy, folder: Path, tmp_path: Path) -> None:
    place = Place(tmp_path / "versions", folder)
    state = moved(policy, 1)
    path = place.put(Publication(7, state))
    assert path.name == "version_000007"
    assert all(torch.equal(read_state(path)[name], state[name]) for name in state)
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {file.name for file in path.iterdir()}
    assert not list(path.glob("critic*"))  # a server would take it for a part of the model
    late = Publication(8, state)
    assert late.digest
    next(iter(state.values())).add_(1)
    with pytest.raises(StaleWeights, match=r"changed while it was written.*Publication.copy"):
        place.put(late)
    assert [one.name for one in place.folder.iterdir()] == ["version_000007"]
    (path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(StaleWeights, match="damaged or cut short"):
        read_state(path)


def test_old_versions_are_removed_but_not_the_one_a_proof_needs(policy: Policy, folder: Path, tmp_path: Path) -> None:
    place = Place(tmp_path / "versions", folder, seen_as="/mnt/versions/")
    paths = [place.put(Publication(version, moved(policy, 0))) for version in range(5)]
    place.tidy(keep={paths[1]})
    assert sorted(one.name for one in place.folder.iterdir()) == [paths[at].name for at in (1, 3, 4)]
    assert place.seen(paths[4]) == "/mnt/versions/version_000004"
