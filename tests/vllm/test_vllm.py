"""Real vLLM servers on the CPU, started by `trimtab serve`: everything that the lookalike only plays.

`make test-vllm` runs it. Without the environment of `make vllm-env` it is skipped.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.rollout.lookalike import asynchronous
from torch import Tensor

from trimtab.config.train import ModelSettings
from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.answer import Answer
from trimtab.rollout.engine import Greedy, Request, Sample, Sampling
from trimtab.rollout.http import Server
from trimtab.rollout.meet import Language
from trimtab.rollout.place import Place
from trimtab.rollout.publication import Publication
from trimtab.rollout.remote import Remote
from trimtab.rollout.score import ModelScores, Row
from trimtab.rollout.tokenizer import character_tokenizer
from trimtab.train.policy import Policy, new_policy, published, save

ROOT = Path(__file__).parents[2]
VLLM = Path(os.environ.get("VLLM_ENV", ROOT / ".vllm-env"))
TOKEN, LENGTH = "for-tests", 1024
ALPHABET = "".join(map(chr, range(32, 127)))
TEMPLATE = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
DEADLINE = 240
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not (VLLM / "bin" / "python").is_file(), reason="make vllm-env builds the environment"),
]


class Process:
    """A server as a process of its own; its log lies in the folder."""

    def __init__(self, model: Path, log: Path, *more: str, rank: int = 0, dtype: str = "float32") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._words = [sys.executable, "-m", "trimtab", "serve", str(model), "--port", str(self.port), "--slots", "32"]
        self._words += ["--dtype", dtype, "--max-length", str(LENGTH), "--lora-rank", str(rank)]
        self._words += ["--env", str(VLLM), "--", *more]
        self._log = log
        self.start()

    def start(self) -> None:
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "TRIMTAB_TOKEN": TOKEN, "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": path}
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(self._words, stdout=log, stderr=log, env=env, start_new_session=True)
        begun = time.monotonic()
        while time.monotonic() - begun < DEADLINE:
            assert self._child.poll() is None, self._log.read_text()[-3000:]
            try:
                if httpx.get(f"{self.url}/health", trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        raise AssertionError(self._log.read_text()[-3000:])

    def kill(self) -> None:
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.set_num_threads(1)
    built = new_policy(ModelSettings(hidden_size=64, num_layers=2, num_heads=2, mlp_size=128), ALPHABET, seed=0)
    with torch.no_grad():
        built.model.get_output_embeddings().weight.mul_(20)
    return built


@pytest.fixture(scope="module")
def folder(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vllm") / "model"
    save(policy, path)
    return path


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[Process]:
    started = Process(folder, folder.parent / "server.log")
    yield started
    started.kill()


def language(policy: Policy) -> Language:
    return Language(policy.tokenizer, len(policy.tokenizer), policy.eos_ids, LENGTH)


async def connect(process: Process, policy: Policy, folder: Path, server: Server | None = None) -> Remote:
    server = server or Server(process.url, token=TOKEN, timeout=120)
    place = Place(folder.parent / "versions", folder)
    return await Remote.connect(server, place=place, scores=ModelScores(policy.model), language=language(policy))


def moved(policy: Policy, version: int, step: float = 1e-3) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(version)
    state = published(policy.model)
    return {
        name: tensor + version * step * torch.randn(tensor.shape, generator=random) for name, tensor in state.items()
    }


def misfit(policy: Policy, version: int, pairs: list[tuple[tuple[int, ...], Sample]], how: Sampling) -> float:
    """Root mean square of recorded log-probs against transformers' under a version."""
    rows = [Row(prompt, sample.ids) for prompt, sample in pairs]
    found = torch.cat([sample.logp for _, sample in pairs])
    return float(
        (found - ModelScores(policy.model)(moved(policy, version), rows, how.temperature)).square().mean().sqrt()
    )


class Changed(Server):
    """A real server behind something that spoils one thing."""

    def __init__(self, process: Process, *faults: str) -> None:
        super().__init__(process.url, token=TOKEN, timeout=120)
        self.faults = set(faults)

    async def generate(
        self, ids: Any, how: Any, stop_ids: Any, seed: int, *, top: int = 0, adapter: str = ""
    ) -> Answer:
        if "warmer" in self.faults:
            how = replace(how, temperature=how.temperature * 1.25)
        answer = await super().generate(ids, how, stop_ids, seed, top=top, adapter=adapter)
        return replace(answer, cached=None) if "silent" in self.faults else answer

    async def pause(self) -> None:
        kept = {"clear_cache": "false"} if "stale" in self.faults else {}
        await self._send("POST", "/pause", params={"mode": "abort", **kept})

    async def forget(self) -> None:
        if "stale" not in self.faults:
            await super().forget()

    async def reload(self, folder: str) -> None:
        if "old" not in self.faults:
            await super().reload(folder)


@asynchronous
async def test_log_probs_are_those_of_transformers(process: Process, policy: Policy, folder: Path) -> None:
    engine = await connect(process, policy, folder)
    await engine.load(Publication(0, moved(policy, 0)))
    prompts = [tuple(range(3 + at, 40 + at)) for at in range(32)]
    for how in (Sampling(64, 1.0), Sampling(64, 0.7), Sampling(64, 1.3)):
        asked = (engine.generate(Request(prompt, seed), how) for seed, prompt in enumerate(prompts))
        pairs = list(zip(prompts, await asyncio.gather(*asked), strict=True))
        drift = misfit(policy, 0, pairs, how)
        print(f"\ntemperature {how.temperature}: {sum(len(s.ids) for _, s in pairs)} tokens, drift {drift:.2g}")
        assert drift < 1e-4
        assert {sample.finish for _, sample in pairs} <= {"eos", "length"}
        assert all((sample.ids[-1] == policy.eos_id) == (sample.finish == "eos") for _, sample in pairs)
    cut = await engine.generate(Request(prompts[0], 0), Sampling(64, 1.0, top_k=2))
    assert float(cut.logp.max()) <= 0
    greedy = await engine.generate(Request(prompts[0], 0), Greedy(8))
    assert greedy.logp.tolist() == [0.0] * len(greedy.ids)
    await engine.close()


@asynchronous
async def test_parameters_change_with_requests_in_flight_and_every_token_fits_its_version_alone(
    process: Process, policy: Policy, folder: Path
) -> None:
    engine = await connect(process, policy, folder)
    await engine.load(Publication(0, moved(policy, 0)))
    how = Sampling(900, 1.0)
    prompts = [tuple(range(3 + at, 40 + at)) for at in range(24)]
    parts: list[list[tuple[tuple[int, ...], Sample]]] = [[] for _ in range(4)]
    for version in (1, 2, 3):
        asked = [
            asyncio.create_task(engine.generate(Request(prompt, seed), how)) for seed, prompt in enumerate(prompts)
        ]
        await asyncio.sleep(1.5)
        begun = time.monotonic()
        assert await engine.load(Publication(version, moved(policy, version))) == version
        print(f"\nload of version {version} with requests in flight: {time.monotonic() - begun:.2f} s")
        for prompt, sample in zip(prompts, await asyncio.gather(*asked), strict=True):
            assert set(sample.version) <= {version - 1}
            if sample.ids:
                parts[version - 1].append((prompt, sample))
        aborted = [sample for _, sample in parts[version - 1] if sample.finish == "abort"]
        assert len(aborted) >= 3
    for version in range(3):
        fits = [misfit(policy, other, parts[version], how) for other in range(4)]
        print(f"tokens of version {version}: misfit under versions 0 to 3: {', '.join(f'{one:.2g}' for one in fits)}")
        assert fits[version] < 1e-4
        assert all(fits[other] > 1e-2 for other in range(4) if other != version)
    assert all(proof.verdict == "proven" for proof in engine.proofs)
    print("shares", [f"{proof.share:.6f} ± {proof.error:.1g}" for proof in engine.proofs])
    await engine.close()


@asynchronous
async def test_a_cancelled_request_ends_on_the_server(process: Process, policy: Policy, folder: Path) -> None:
    engine = await connect(process, policy, folder)
    await engine.load(Publication(0, moved(policy, 0)))
    asked = [asyncio.create_task(engine.generate(Request((5, 6, 7), seed), Sampling(1000, 2.0))) for seed in range(8)]
    await asyncio.sleep(0.5)
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(100):
            text = (await client.get(f"{process.url}/metrics")).text
            (line,) = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running{")]
            if float(line.split()[-1]) == 0:
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail(line)
    await engine.close()


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (("stale",), "took 256 tokens of the next prompt from it"),
        (("stale", "silent"), "it computes with a mixture: a prefix cache"),
        (("old",), "it still computes with the old parameters"),
        (("warmer",), "asked for temperature 0.8 and its log-probs are those of about 1.0"),
    ],
)
@asynchronous
async def test_what_does_not_arrive_is_caught(
    faults: tuple[str, ...], said: str, process: Process, policy: Policy, folder: Path
) -> None:
    """The version before arrived; then one thing goes wrong."""
    server = Changed(process)
    engine = await connect(process, policy, folder, server)
    await engine.load(Publication(0, moved(policy, 0)))
    server.faults = set(faults)
    with pytest.raises(EngineError, match=said) as caught:
        await engine.load(Publication(1, moved(policy, 1)))
    print(f"\n{faults}: {caught.value}\n{engine.proofs[-1]}")
    assert engine.version == -1
    server.faults = set()
    assert await engine.load(Publication(2, moved(policy, 2))) == 2
    await engine.close()


@asynchronous
async def test_a_wrong_token_is_refused(process: Process, policy: Policy, folder: Path) -> None:
    with pytest.raises(EngineError, match=r"refuses our token \(HTTP 401\)"):
        await connect(process, policy, folder, Server(process.url, token="wrong"))


@asynchronous
async def test_a_foreign_tokenizer_and_vocabulary_are_refused(process: Process, policy: Policy, folder: Path) -> None:
    other = character_tokenizer(ALPHABET.replace("a", "ä"))
    place, scores = Place(folder.parent / "versions", folder), ModelScores(policy.model)
    for tokenizer, ids, said in (
        (other, len(other), "its tokenizer reads the ids"),
        (policy.tokenizer, len(other) + 1, "its model does not have 99 ids"),
    ):
        tongue = Language(tokenizer, ids, policy.eos_ids, LENGTH)
        with pytest.raises(EngineError, match=said):
            await Remote.connect(Server(process.url, token=TOKEN), place=place, scores=scores, language=tongue)


@asynchronous
async def test_a_server_killed_in_the_middle_is_noticed_and_its_old_parameters_are_refused_after_a_restart(
    process: Process, policy: Policy, folder: Path
) -> None:
    engine = await connect(process, policy, folder)
    await engine.load(Publication(0, moved(policy, 0)))
    await engine.load(Publication(1, moved(policy, 1)))
    asked = [asyncio.create_task(engine.generate(Request((5, 6, 7), seed), Sampling(900, 2.0))) for seed in range(8)]
    await asyncio.sleep(0.5)
    begun = time.monotonic()
    process.kill()
    found = await asyncio.gather(*asked, return_exceptions=True)
    print(f"\nnoticed {time.monotonic() - begun:.2f} s after the kill: {found[-1]}")
    lost = [one for one in found if isinstance(one, EngineError)]
    assert lost
    assert all("broke off 3 times" in str(one) and process.url in str(one) for one in lost)
    assert engine.version == -1
    process.start()
    with pytest.raises(EngineError, match="Load a version first"):
        await engine.generate(Request((5, 6, 7), 0), Sampling(4, 1.0))
    engine._version = 1  # as if nobody had noticed: an idle connection, and a supervisor that restarts
    with pytest.raises(StaleWeights, match="label 'default', which were never proven"):
        await engine.generate(Request((5, 6, 7), 0), Sampling(4, 1.0))
    assert await engine.load(Publication(1, moved(policy, 1))) == 1
    sample = await engine.generate(Request((5, 6, 7), 0), Sampling(64, 1.0))
    assert misfit(policy, 1, [((5, 6, 7), sample)], Sampling(64, 1.0)) < 1e-4
    await engine.close()


@asynchronous
async def test_raw_log_probs_and_another_chat_template_are_refused_at_the_door(
    process: Process, policy: Policy, folder: Path
) -> None:
    process.kill()  # two servers at once do not fit beside the tests
    template = folder.parent / "other.jinja"
    template.write_text(TEMPLATE)
    other = Process(
        folder, folder.parent / "raw.log", "--logprobs-mode", "raw_logprobs", "--chat-template", str(template)
    )
    try:
        with pytest.raises(EngineError, match="its chat template is another than ours"):
            await connect(other, policy, folder)
        same = character_tokenizer(ALPHABET)
        same.chat_template = TEMPLATE
        tongue = Language(same, len(same), policy.eos_ids, LENGTH)
        place, scores = Place(folder.parent / "versions", folder), ModelScores(policy.model)
        with pytest.raises(EngineError, match="they are raw: of another distribution") as caught:
            await Remote.connect(Server(other.url, token=TOKEN), place=place, scores=scores, language=tongue)
        print(f"\n{caught.value}")
    finally:
        other.kill()
        process.start()
