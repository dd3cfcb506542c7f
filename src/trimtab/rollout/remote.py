"""The only place that owns an engine whose memory is not ours: a vLLM server, its slots, its versions, their proofs.

New parameters reach it by way of a folder. What it is answering is stopped and comes back as it is; then it reads the
folder, forgets its prefix cache, and shows by a probe that it computes with the new parameters. A server of which that
was not shown, at the start or after it went away, answers nothing.
"""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import torch

from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.engine import Greedy, Request, Sample, Sampling
from trimtab.rollout.http import Facts, Gone, Server
from trimtab.rollout.meet import Language, meet
from trimtab.rollout.place import Place, decoy, read_state
from trimtab.rollout.probe import Probe, new_probe
from trimtab.rollout.proof import Proof
from trimtab.rollout.publication import Publication
from trimtab.rollout.score import Scores

log = logging.getLogger(__name__)

DECOY, DECOY_SCALE = "decoy", 0.02
"""The first version is proven against parameters that are a little beside it: about ten times bf16's rounding."""
NEAR_OLD = 0.25
"""A share below this is told as "old parameters" and not as a mixture; both are refused."""
NOISE = {"float32": 2.5e-4, "float16": 0.02, "bfloat16": 0.05}
"""How far the log-probs of a sound server may lie from ours before it was measured, by its number format. A server that
takes a part of the parameters only would otherwise set the measure itself when it is connected to again."""
COLDEST = 0.01
"""vLLM draws no colder than this, whatever it is asked for."""


class Remote:
    """An `AsyncEngine` that is a vLLM server. `connect` makes one; it answers after the first `load`."""

    def __init__(
        self, server: Server, facts: Facts, place: Place, scores: Scores, language: Language, slots: int
    ) -> None:
        self._server: Server = server
        self._facts: Facts = facts
        self._place: Place = place
        self._language: Language = language
        self._probe: Probe = new_probe(server, facts, language, scores)
        self._slots: int = min(slots or facts.slots, facts.slots)
        self._free: asyncio.Semaphore = asyncio.Semaphore(self._slots)
        self._open: asyncio.Event = asyncio.Event()
        self._open.set()
        self._loading: asyncio.Lock = asyncio.Lock()
        self._name: str = uuid4().hex[:12]
        self._loads: int = 0
        self._version_of: dict[str, int] = {}
        self._version: int = -1
        self._base: Path | None = None
        self._noise: float | None = None
        self._lost: str = "nothing was loaded yet"
        self.proofs: list[Proof] = []
        """What was shown of each load, decoys and refused versions included."""

    @classmethod
    async def connect(
        cls, server: Server, *, place: Place, scores: Scores, language: Language, slots: int = 0
    ) -> "Remote":
        """Compare languages, and measure which log-probs the server gives. `slots`: requests at once (0: its own)."""
        return cls(server, await meet(server, language), place, scores, language, slots)

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def version(self) -> int:
        return self._version

    @property
    def dtype(self) -> str:
        return self._facts.dtype

    @property
    def slots(self) -> int:
        return self._slots

    async def close(self) -> None:
        await self._server.close()

    # ----------------------------------------------------------------------------------------------------- generating

    async def generate(self, request: Request, how: Sampling | Greedy) -> Sample:
        """One answer, each token with the version that chose it. While parameters change, new requests wait.

        A seed is sent, and promises nothing: a server's batches differ from one time to the next.
        """
        self._check(request, how)
        async with self._free:
            _ = await self._open.wait()
            if self._version < 0:
                raise EngineError(
                    f"engine {self._server.url}: {self._lost}, so it is not known which parameters would answer. Load "
                    "a version first."
                )
            try:
                answer = await self._server.generate(request.ids, how, self._language.eos_ids, request.seed)
            except Gone:
                self._lose("its server went away")
                raise
        if any(label not in self._version_of for label in answer.labels):
            _ = await self._open.wait()  # a load is under way, and this may be its version
        version = tuple(self._stamp(label) for label in answer.labels)
        logp = torch.zeros(len(answer.ids)) if isinstance(how, Greedy) else torch.tensor(answer.logp)
        return Sample(answer.ids, logp, version, answer.finish)

    def _stamp(self, label: str) -> int:
        """The version of a label. One that we never gave means that the server restarted, or obeys somebody else."""
        if label in self._version_of:
            return self._version_of[label]
        if not label.startswith(self._name):
            self._lose("it holds parameters that we did not load")
        raise StaleWeights(
            f"engine {self._server.url}: a token was chosen by parameters with the label {label!r}, which were never "
            "proven, so the answer is not used. The server restarted (its label is then 'default'), or another trainer "
            "loads into it. Load the version again; give every trainer a server of its own."
        )

    def _lose(self, why: str) -> None:
        self._version, self._base, self._lost = -1, None, why

    def _check(self, request: Request, how: Sampling | Greedy) -> None:
        where, longest = f"engine {self._server.url}", self._facts.max_length
        if not request.ids or not 0 <= min(request.ids) <= max(request.ids) < self._language.vocabulary:
            raise EngineError(
                f"{where}: the prompt has {len(request.ids)} ids and the model knows 0 to "
                f"{self._language.vocabulary - 1}, so it cannot be continued. Give at least one id, with the tokenizer "
                "of this model."
            )
        if how.max_new_tokens < 1 or len(request.ids) + how.max_new_tokens > longest:
            raise EngineError(
                f"{where}: a prompt of {len(request.ids)} tokens and {how.max_new_tokens} new ones do not fit into the "
                f"server's {longest}, so the answer would be cut without a word. Start it with a larger "
                "--max-model-len, or ask for fewer (1 or more)."
            )
        if isinstance(how, Greedy):
            return
        if not COLDEST <= how.temperature < float("inf") or not 0 < how.top_p <= 1 or how.top_k < 0:
            raise EngineError(
                f"{where}: temperature is {how.temperature}, top_p {how.top_p}, top_k {how.top_k}, so it is not clear "
                f"what would be drawn. Use a finite temperature of {COLDEST} or more (or Greedy), top_p above 0 and at "
                "most 1 (1: all), top_k 0 (all) or more."
            )
        if how.record_support and how.truncates:
            raise EngineError(
                f"{where}: cannot say which tokens top_p = {how.top_p} and top_k = {how.top_k} left, so the trainer "
                "could not compute its log-probs over the same ones. Sample with top_p = 1 and top_k = 0."
            )

    # -------------------------------------------------------------------------------------------------------- loading

    async def load(self, publication: Publication) -> int:
        """Write the version, hand it over, prove it. A refusal of the disk leaves the server as it was.

        Unproven is no refusal: the step was too small to be seen beneath the server's rounding. Then the next version
        is proven against the last one that was, so that small steps add up until they are seen.
        """
        async with self._loading:
            if publication.version <= self._version:
                raise StaleWeights(
                    f"engine {self._server.url}: version {publication.version} is not newer than {self._version}, so "
                    "its tokens could not be told from those of the version in use. Publish with a version that grows."
                )
            path = await asyncio.to_thread(self._place.put, publication)
            self._open.clear()
            try:
                await self._deliver(publication, path)
            except BaseException as error:
                self._lose(f"version {publication.version} did not arrive ({type(error).__name__})")
                raise
            finally:
                self._open.set()
            self._place.tidy(keep={path, *([self._base] if self._base else [])})
            return self._version

    async def _deliver(self, publication: Publication, path: Path) -> None:
        is_first = self._base is None
        if self._base is None:
            await self._calibrate(publication.version, path)
        await self._server.pause()  # what is answered ends here, so that the probe need not wait for a slot
        await self._server.resume()
        await self._probe.warm()
        label, proof = await self._hand_over(publication.version, str(publication.version), path)
        if proof.verdict == "refused" or (is_first and proof.verdict != "proven"):
            raise StaleWeights(f"engine {self._server.url}: {_refusal(proof)}")
        if proof.verdict == "proven":
            self._base, self._noise = path, proof.drift
        else:
            log.warning("engine %s: version %d is unproven: %s", self._server.url, proof.version, proof.sentence)
        self._version_of[label] = publication.version
        self._version = publication.version

    async def _calibrate(self, version: int, path: Path) -> None:
        """Load a decoy: an old version to prove the first one against. It also shows how the server rounds."""
        near = Publication(version, decoy(read_state(path), DECOY_SCALE))
        self._base, self._noise = path, NOISE.get(self.dtype, NOISE["bfloat16"])
        put = await asyncio.to_thread(self._place.put, near, DECOY)
        _, proof = await self._hand_over(version, DECOY, put)
        if proof.verdict != "proven":
            raise StaleWeights(
                f"engine {self._server.url}: was given parameters a little beside version {version}, to see whether it "
                f"takes any, and {_refusal(proof)}"
            )
        self._base, self._noise = put, proof.drift

    async def _hand_over(self, version: int, what: str, path: Path) -> tuple[str, Proof]:
        label = await self._swap(path, what)
        shown = await self._probe.show(label)
        assert self._base is not None
        proof = await asyncio.to_thread(self._probe.judge, version, shown, self._base, path, self._noise)
        self.proofs.append(proof)
        return label, proof

    async def _swap(self, path: Path, what: str) -> str:
        """Other parameters under another label, which it returns. Until they are in, tokens carry a third one."""
        self._loads += 1
        label = f"{self._name}:{self._loads}:{what}"
        await self._server.pause()
        try:
            await self._server.name(f"{label}:loading")
            await self._server.reload(self._place.seen(path))
            await self._server.forget()
            await self._server.name(label)
        except BaseException:
            with suppress(EngineError):  # what waits there is answered, is ours, and is refused by its label
                await self._server.resume()
            raise
        await self._server.resume()
        return label


def _refusal(proof: Proof) -> str:
    """What it looks like from inside when the share is not 1, or is 1 with much more noise than before."""
    if proof.verdict == "unproven":
        what = "it is not clear whether they arrived"
    elif abs(proof.share) <= NEAR_OLD:
        what = "it still computes with the old parameters"
    elif 0 < proof.share < 1 + NEAR_OLD:
        what = "it computes with a mixture: a prefix cache of old parameters, or some parameters that did not arrive"
    else:
        what = "it computes with neither the old nor the new parameters"
    return (
        f"{what} ({proof.sentence}), so version {proof.version} is refused and the server answers nothing until a load "
        "is proven. Look at its log; load again, or restart it."
    )
