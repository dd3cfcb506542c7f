"""Real vLLM servers that take adapters: a version is a folder of a few kilobytes, loaded under a name of its own.

`make test-vllm` runs it; this file took 13 minutes on two cores that had other work to do, 6 of them two starts.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.rollout.lookalike import asynchronous
from tests.rollout.test_remote_adapter import adapter, version_of
from tests.vllm.test_vllm import VLLM, Process, connect, folder, policy

from trimtab.errors import EngineError
from trimtab.rollout.engine import Request, Sample, Sampling
from trimtab.rollout.score import ModelScores, Row
from trimtab.train.policy import Policy

__all__ = ["folder", "policy"]
RANK = 8
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not (VLLM / "bin" / "python").is_file(), reason="make vllm-env builds the environment"),
]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def process(request: pytest.FixtureRequest, folder: Path) -> Iterator[Process]:
    started = Process(folder, folder.parent / f"{request.param}.log", rank=RANK, dtype=request.param)
    yield started
    started.kill()


def misfit(policy: Policy, version: int, pairs: list[tuple[tuple[int, ...], Sample]]) -> float:
    rows = [Row(prompt, sample.ids) for prompt, sample in pairs]
    found = torch.cat([sample.logp for _, sample in pairs])
    ours = ModelScores(policy.model)(version_of(policy, version, RANK).state, rows, 1.0)
    return float((found - ours).square().mean().sqrt())


@asynchronous
async def test_adapters_change_with_requests_in_flight_and_every_token_fits_its_version_alone(
    process: Process, policy: Policy, folder: Path
) -> None:
    engine = await connect(process, policy, folder)
    noise = 1e-4 if engine.dtype == "float32" else 0.1
    assert engine.facts.lora_rank == RANK
    begun = time.monotonic()
    assert await engine.load(version_of(policy, 0, RANK)) == 0
    print(f"\n{engine.dtype}: first load, with the model and two decoys: {time.monotonic() - begun:.2f} s")
    prompts = [tuple(range(3 + at, 40 + at)) for at in range(24)]
    parts: list[list[tuple[tuple[int, ...], Sample]]] = [[] for _ in range(4)]
    for version in (1, 2, 3):
        asked = [
            asyncio.create_task(engine.generate(Request(prompt, seed), Sampling(900, 1.0)))
            for seed, prompt in enumerate(prompts)
        ]
        await asyncio.sleep(1.5)
        begun = time.monotonic()
        assert await engine.load(version_of(policy, version, RANK)) == version
        print(f"load of adapter {version} with requests in flight: {time.monotonic() - begun:.2f} s")
        for prompt, sample in zip(prompts, await asyncio.gather(*asked), strict=True):
            assert set(sample.version) <= {version - 1}
            if sample.ids:
                parts[version - 1].append((prompt, sample))
        assert sum(sample.finish == "abort" for _, sample in parts[version - 1]) >= 3
    for version in range(3):
        fits = [misfit(policy, other, parts[version]) for other in range(4)]
        print(f"tokens of version {version}: misfit under versions 0 to 3: {', '.join(f'{one:.2g}' for one in fits)}")
        assert fits[version] < noise
        assert all(fits[other] > 2 * noise for other in range(4) if other != version)
    print("\n".join(f"{proof.verdict}: {proof.sentence}" for proof in engine.proofs))
    assert all(proof.verdict == "proven" for proof in engine.proofs)
    place = folder.parent / "versions"
    sizes = [sum(file.stat().st_size for file in (place / name).iterdir()) for name in ("adapter_000003", "base")]
    print(f"bytes of an adapter and of the model: {sizes}")
    assert not list(place.glob("version_*"))
    await engine.close()


@asynchronous
async def test_another_adapter_under_the_name_and_a_server_that_forgot_are_caught(
    process: Process, policy: Policy, folder: Path
) -> None:
    engine = await connect(process, policy, folder)
    await engine.load(version_of(policy, 0, RANK))
    place = engine._place
    stale = place.put_adapter(0, adapter(policy, 0, RANK), "stale")
    bring = engine._server.load_adapter

    async def other(name: str, _: str) -> None:
        await bring(name, str(stale))

    engine._server.load_adapter = other
    with pytest.raises(EngineError, match="it still computes with the old parameters") as caught:
        await engine.load(version_of(policy, 3, RANK))
    print(f"\n{caught.value}")
    engine._server.load_adapter = bring
    assert await engine.load(version_of(policy, 4, RANK)) == 4
    await engine._server.unload_adapter(engine._adapter)
    with pytest.raises(EngineError, match=r"HTTP 404.*the server restarted, or another trainer removed it") as caught:
        await engine.generate(Request((5, 6, 7), 0), Sampling(4, 1.0))
    print(caught.value)
    assert engine.version == -1
    with pytest.raises(EngineError, match=r"load_lora_adapter answers HTTP 404 \(Loading lora x failed"):
        await engine._server.load_adapter("x", "/nowhere")
    assert await engine.load(version_of(policy, 5, RANK)) == 5  # a folder that it cannot read did not end it
    await engine.close()
