"""The only place that owns an engine whose memory is not ours: a vLLM server, its slots, its versions, their proofs.

New parameters reach it by way of a folder: all of them, or an adapter alone where the server takes one. What it is
answering is stopped and comes back as it is; then it reads the folder, forgets its prefix cache, and shows by a probe
that it computes with the new parameters. A server of which that was not shown, at the start or after it went away,
answers nothing.
"""

import asyncio
import logging
from contextlib import suppress
from uuid import uuid4

import torch

from trimtab.errors import EngineError, StaleWeights
from trimtab.rollout.adapter import Adapter, read_adapter
from trimtab.rollout.engine import Greedy, Request, Sample, Sampling
from trimtab.rollout.http import Facts, Gone, Server, UnknownAdapter
from trimtab.rollout.meet import Language, meet
from trimtab.rollout.place import Held, Place, decoy, read_state
from trimtab.rollout.probe import Probe, new_probe
from trimtab.rollout.proof import Proof
from trimtab.rollout.publication import Publication
from trimtab.rollout.score import Scores

log = logging.getLogger(__name__)

DECOY, BASE, DECOY_SCALE = "decoy", "base", 0.02
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
        self._base: Held | None = None
        """What was last proven to be there."""
        self._adapter: str = ""
        """The server's name of the adapter in use."""
        self._adapters: set[str] = set()
        """Names that the server may still know."""
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
            adapter = self._adapter
            try:
                answer = await self._server.generate(
                    request.ids, how, self._language.eos_ids, request.seed, adapter=adapter
                )
            except Gone:
                self._lose("its server went away")
                raise
            except UnknownAdapter:
                _ = await self._open.wait()
                if self._adapter != adapter:  # asked again after a broken connection, when the next version was in
                    return Sample((), torch.zeros(0), (), "abort")
                self._lose("it does not know the adapter that we loaded")
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
            held = await asyncio.to_thread(self._put, publication)
            self._open.clear()
            try:
                await self._deliver(publication.version, held)
            except BaseException as error:
                self._lose(f"version {publication.version} did not arrive ({type(error).__name__})")
                raise
            finally:
                self._open.set()
            self._place.tidy(keep=held.paths | (self._base.paths if self._base else set()))
            return self._version

    def _put(self, publication: Publication) -> Held:
        """Write what the server needs: the adapter alone if it takes one, beside a model that was written once."""
        adapter = publication.adapter
        if adapter is None or not self._takes(adapter):
            return Held(self._place.put(publication))
        is_there = self._base is not None and self._base.adapter is not None
        model = self._base.model if self._base is not None and is_there else self._place.put_base(publication)
        return Held(model, self._place.put_adapter(publication.version, adapter))

    def _takes(self, adapter: Adapter) -> bool:
        if 0 < self._facts.lora_rank < adapter.rank:
            log.warning(
                "engine %s: takes adapters of rank %d and ours has %d, so whole parameters are published. Start it "
                "with --lora-rank %d.", self._server.url, self._facts.lora_rank, adapter.rank, adapter.rank,
            )  # fmt: skip
        return adapter.rank <= self._facts.lora_rank

    async def _deliver(self, version: int, held: Held) -> None:
        is_first = self._base is None or (held.adapter is not None and self._base.adapter is None)
        if is_first:
            await self._calibrate(version, held)
        await self._server.pause()  # what is answered ends here, so that the probe need not wait for a slot
        await self._server.resume()
        await self._probe.warm(self._adapter)
        label, proof = await self._hand_over(version, str(version), held)
        if proof.verdict == "refused" or (is_first and proof.verdict != "proven"):
            raise StaleWeights(f"engine {self._server.url}: {_refusal(proof)}")
        if proof.verdict == "proven":
            self._base, self._noise = held, proof.drift
        else:
            log.warning("engine %s: version %d is unproven: %s", self._server.url, proof.version, proof.sentence)
        self._version_of[label] = version
        self._version = version

    async def _calibrate(self, version: int, held: Held) -> None:
        """Load a decoy: an old version to prove the first one against. It also shows how the server rounds.

        Beneath an adapter the model comes first, proven in the same way. Then the decoy is an adapter too.
        """
        if held.adapter is None:
            near = Publication(version, decoy(await asyncio.to_thread(read_state, held.model), DECOY_SCALE))
            self._base, self._noise = held, NOISE.get(self.dtype, NOISE["bfloat16"])
            await self._settle(version, DECOY, Held(await asyncio.to_thread(self._place.put, near, DECOY)))
            return
        model = Held(held.model)
        await self._calibrate(version, model)
        await self._settle(version, BASE, model)
        aside = read_adapter(held.adapter).decoy(await asyncio.to_thread(read_state, held.model), DECOY_SCALE)
        path = await asyncio.to_thread(self._place.put_adapter, version, aside, f"{DECOY}_adapter")
        await self._settle(version, DECOY, Held(held.model, path))

    async def _settle(self, version: int, what: str, held: Held) -> None:
        """Load what a proof will be held against; it must be proven itself."""
        _, proof = await self._hand_over(version, what, held)
        if proof.verdict != "proven":
            given = "the model beneath" if what == BASE else "parameters a little beside"
            raise StaleWeights(
                f"engine {self._server.url}: was given {given} version {version}, to see whether it takes any, and "
                f"{_refusal(proof)}"
            )
        self._base, self._noise = held, proof.drift

    async def _hand_over(self, version: int, what: str, held: Held) -> tuple[str, Proof]:
        label = await self._swap(held, what)
        shown = await self._probe.show(label, self._adapter)
        assert self._base is not None
        proof = await asyncio.to_thread(self._probe.judge, version, shown, self._base, held, self._noise)
        self.proofs.append(proof)
        return label, proof

    async def _swap(self, held: Held, what: str) -> str:
        """Other parameters under another label, which it returns. Until they are in, tokens carry a third one."""
        self._loads += 1
        label = f"{self._name}:{self._loads}:{what}"
        await self._server.pause()
        try:
            await self._server.name(f"{label}:loading")
            await self._bring(held)
            await self._server.forget()
            await self._server.name(label)
        except BaseException:
            with suppress(EngineError):  # what waits there is answered, is ours, and is refused by its label
                await self._server.resume()
            raise
        await self._server.resume()
        return label

    async def _bring(self, held: Held) -> None:
        """A model into the place of the model, or an adapter under a name that no other load ever had."""
        self._adapter = ""
        if held.adapter is None:
            await self._server.reload(self._place.seen(held.model))
        else:
            self._adapter = f"{held.adapter.name}.{self._name}.{self._loads}"
            self._adapters.add(self._adapter)
            await self._server.load_adapter(self._adapter, self._place.seen(held.adapter))
        for name in self._adapters - {self._adapter}:
            await self._server.unload_adapter(name)
        self._adapters &= {self._adapter}


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
