"""The only place that knows a vLLM server's protocol: routes, JSON, status codes. Written for vLLM 0.32.

Token ids go in and come out: no text is ever sent to be tokenised, and whatever decides how tokens are drawn goes with
every request. An answer is taken only if it is an answer to this request; `answer.py` reads it. What is done with
servers and versions is `remote.py`'s business.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from trimtab.errors import EngineError, EngineGone, MissingExtra, StaleWeights
from trimtab.rollout.answer import Answer, read_answer
from trimtab.rollout.engine import Greedy, Sampling

if TYPE_CHECKING:
    import httpx

ATTEMPTS = 3
"""Connections that may break before a server counts as gone. A broken one may only be old: uvicorn closes idle ones."""
PAUSE, LONGEST_PAUSE = 0.25, 8.0
"""Seconds before the second attempt, doubled each time."""
BUSY = (429, 503)
ADAPTERS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Routes that answer with a sentence instead of JSON."""
Sleep = Callable[[float], Awaitable[None]]


class Gone(EngineGone):
    """The server cannot be reached or failed inside, so it is not known what it holds now."""


class UnknownAdapter(EngineError):
    """The server does not know the adapter that a request names: it was replaced, or the server restarted."""


@dataclass(frozen=True)
class Facts:
    """What a server says about itself."""

    version: str
    model: str
    dtype: str
    max_length: int
    """Tokens of the longest sequence, prompt included."""
    block_size: int
    """Tokens of one block of its key-value cache: shorter prefixes are not cached."""
    caches_prefixes: bool
    slots: int
    """Requests that it computes at once."""
    eos_token: str
    chat_template: str
    lora_rank: int = 0
    """The largest rank of an adapter that it takes; 0: it takes none."""


class Server:
    """One vLLM server, seen from outside. Every method is one request, repeated where that is safe."""

    def __init__(
        self, url: str, *, token: str = "", timeout: float = 600.0, patience: float = 120.0, sleep: Sleep | None = None
    ) -> None:
        """`timeout`: seconds for one answer. `patience`: seconds to wait for a server that says it is busy."""
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra('engine: a server over HTTP needs httpx: pip install "trimtab[http]"') from error
        self.url: str = url.rstrip("/")
        self._timeout: float = timeout
        self._patience: float = patience
        self._sleep: Sleep = sleep or asyncio.sleep
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client: httpx.AsyncClient = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=limits,
            verify=self.url.startswith("https"),
            trust_env=False,  # a proxy of the environment would see the token, and loopback has none
        )

    async def close(self) -> None:
        await self._client.aclose()

    # ---------------------------------------------------------------------------------------------------- generating

    async def generate(
        self,
        ids: Sequence[int],
        how: Sampling | Greedy,
        stop_ids: Sequence[int],
        seed: int,
        *,
        top: int = 0,
        adapter: str = "",
    ) -> Answer:
        """One answer, with the adapter of that name if one is named. Without `stop_ids` it is as long as `how` says."""
        is_greedy = isinstance(how, Greedy)
        drawing = {
            "temperature": 0.0 if is_greedy else how.temperature,
            "top_p": 1.0 if is_greedy else how.top_p,
            "top_k": 0 if is_greedy else how.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": how.max_new_tokens,
            "min_tokens": 0,
            "stop": [],
            "stop_token_ids": list(stop_ids),
            "ignore_eos": True,  # our stop ids decide, not the server's
            "logprobs": top,
            "seed": seed,
            "detokenize": False,
            "n": 1,
        }
        named = {"model": adapter} if adapter else {}
        found = await self._ask_generate({"token_ids": list(ids), "sampling_params": drawing, **named})
        if adapter and found.get("model") != adapter:
            raise EngineError(
                f"engine {self.url}: was asked to answer with the adapter {adapter!r} and answered with "
                f"{found.get('model')!r}, so the tokens are another policy's. Look at what stands between."
            )
        return read_answer(self.url, found, stop_ids, how.max_new_tokens)

    async def _ask_generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """Ask until an answer to this very request came, whole. A late answer to an earlier attempt is not taken."""
        said = name = ""
        for attempt in range(ATTEMPTS):
            name = uuid4().hex
            found = await self._send("POST", "/inference/v1/generate", json={"request_id": name, **body})
            said = str(found.get("request_id", ""))
            if said.endswith(name):
                return found
            if attempt + 1 < ATTEMPTS:
                await self._sleep(_pause(attempt))
        raise EngineError(
            f"engine {self.url}: answers {said[-40:]!r} where {name!r} was asked, {ATTEMPTS} times, so answers are "
            "repeated or mixed up and a sequence could be trained twice. Look at what stands between: a proxy, a cache."
        )

    # ------------------------------------------------------------------------------------------------------ asking it

    async def facts(self) -> Facts:
        models = await self._send("GET", "/v1/models")
        info = (await self._send("GET", "/server_info", params={"config_format": "json"}))["vllm_config"]
        version = await self._send("GET", "/version")
        told = await self._send("GET", "/tokenizer_info")
        served = models["data"][0]
        return Facts(
            version=str(version["version"]),
            model=str(served["root"]),
            dtype=str(info["model_config"]["dtype"]).removeprefix("torch."),
            max_length=int(served["max_model_len"]),
            block_size=int(info["cache_config"]["block_size"]),
            caches_prefixes=bool(info["cache_config"]["enable_prefix_caching"]),
            slots=int(info["scheduler_config"]["max_num_seqs"]),
            eos_token=str(told.get("eos_token") or ""),
            chat_template=str(told.get("chat_template") or ""),
            lora_rank=int((info.get("lora_config") or {}).get("max_lora_rank") or 0),
        )

    async def detokenize(self, ids: Sequence[int]) -> str:
        return str((await self._send("POST", "/detokenize", json={"tokens": list(ids)}))["prompt"])

    async def knows_id(self, token: int) -> bool:
        """Whether the model has an embedding for an id."""
        body = {"token_ids": [token], "sampling_params": {"max_tokens": 1, "temperature": 1.0, "detokenize": False}}
        response = await self._respond("POST", "/inference/v1/generate", json=body)
        if response.status_code == 400 and "vocabulary" in response.text:
            return False
        _ = self._read(response, "/inference/v1/generate")
        return True

    # --------------------------------------------------------------------------------------------- changing parameters

    async def pause(self) -> None:
        """End every request, with what it has, and begin no other."""
        _ = await self._send("POST", "/pause", params={"mode": "abort"})

    async def resume(self) -> None:
        _ = await self._send("POST", "/resume")

    async def reload(self, folder: str) -> None:
        """Read the parameters of a folder into the model."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        _ = await self._send("POST", "/collective_rpc", json=body)

    async def load_adapter(self, name: str, folder: str) -> None:
        """Read an adapter from a peft folder. Requests that give its name are answered with it."""
        body = {"lora_name": name, "lora_path": folder}
        try:
            _ = await self._send("POST", ADAPTERS[0], json=body)
        except EngineError as error:
            if "has already been loaded" not in str(error):  # an attempt before this one arrived after all
                raise

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter. One that the server does not have is forgotten already."""
        with suppress(UnknownAdapter):
            _ = await self._send("POST", ADAPTERS[1], json={"lora_name": name})

    async def name(self, label: str) -> None:
        """Name the parameters; the label comes back with every token that they choose. A restart forgets it."""
        _ = await self._send("POST", "/update_weight_version", json={"new_version": label})

    async def forget(self) -> None:
        """Empty the prefix cache. The server answers 200 also where it could not; then this is tried again."""
        for attempt in range(ATTEMPTS):
            if (await self._send("POST", "/reset_prefix_cache")).get("success") is True:
                return
            await self._sleep(_pause(attempt))
        raise StaleWeights(
            f"engine {self.url}: did not empty its prefix cache in {ATTEMPTS} attempts, so answers would be computed "
            "from keys and values of old parameters. Another client may be using the server; give it one alone."
        )

    # ------------------------------------------------------------------------------------------------------- transport

    async def _send(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        """One request and its JSON. Broken connections and half answers are tried again: asking twice changes nothing.

        Whether it is still the same server with the same parameters, the label in every answer tells.
        """
        import httpx

        why = ""
        for attempt in range(ATTEMPTS):
            try:
                return self._read(await self._respond(method, path, **given), path)
            except httpx.ReadTimeout as error:
                raise EngineError(
                    f"engine {self.url}: {path} did not answer within {self._timeout:g} seconds, so the request was "
                    "given up and the server was told so. Look at its log; if answers take that long, give more time."
                ) from error
            except (httpx.TransportError, json.JSONDecodeError) as error:
                why = f"{type(error).__name__}: {error}".rstrip(": ")
            if attempt + 1 < ATTEMPTS:
                await self._sleep(_pause(attempt))
        raise Gone(
            f"engine {self.url}: {path} broke off {ATTEMPTS} times (last: {why}), so the server is gone or cannot be "
            "reached, and what it was answering is lost. Look at its log and start it again (trimtab serve MODEL); it "
            "is used again when its parameters were loaded and proven."
        )

    async def _respond(self, method: str, path: str, **given: Any) -> "httpx.Response":
        """The response, when the server no longer says that it has too much to do."""
        waited, attempt = 0.0, 0
        while (response := await self._client.request(method, path, **given)).status_code in BUSY:
            pause = max(_pause(attempt), _number(response.headers.get("retry-after")))
            if waited + pause > self._patience:
                raise EngineError(
                    f"engine {self.url}: says for {waited:.0f} seconds that it is busy (HTTP {response.status_code}), "
                    "so the request was given up. Use fewer slots, or look at its log."
                )
            waited, attempt = waited + pause, attempt + 1
            await self._sleep(pause)
        return response

    def _read(self, response: "httpx.Response", path: str) -> dict[str, Any]:
        status = response.status_code
        if status == 401:
            raise EngineError(
                f"engine {self.url}: refuses our token (HTTP 401), so nothing can be asked. Give the token that it was "
                "started with: TRIMTAB_TOKEN in both environments."
            )
        if status == 404 and (path == ADAPTERS[1] or path.startswith("/inference")) and not _is_closed(response.text):
            raise UnknownAdapter(
                f"engine {self.url}: {path} answers HTTP 404 ({_words(response.text)}), so the adapter that was asked "
                "for is not there: the server restarted, or another trainer removed it. Load the version again."
            )
        if (flag := _flag(status, path, response.text)) is not None:
            raise EngineError(
                f"engine {self.url}: does not offer {path} (HTTP {status}), so it cannot be used for training. Start "
                f"it with {flag}; `trimtab serve MODEL` does."
            )
        if status != 200:
            raise (Gone if status >= 500 else EngineError)(
                f"engine {self.url}: {path} answers HTTP {status} ({_words(response.text)}), so the request failed. "
                "Look at its log."
            )
        found = response.json() if response.content and path not in ADAPTERS else {}
        if not isinstance(found, dict):
            raise EngineError(
                f"engine {self.url}: {path} answers with {type(found).__name__} instead of an object, so it is not a "
                "vLLM server. Look at the address."
            )
        return cast("dict[str, Any]", found)


def _flag(status: int, path: str, text: str) -> str | None:
    """What a server must be started with, if a route is closed because that is missing."""
    if status == 403 and path.startswith("/inference"):
        return "--enable-scale-out (it opens the route for token ids)"
    if status != 404 or (path in ADAPTERS and not _is_closed(text)):
        return None
    if path in ADAPTERS:
        return "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment (it opens the routes for adapters)"
    if path == "/tokenizer_info":
        return "--enable-tokenizer-info-endpoint (it tells the chat template)"
    if path.startswith("/inference"):
        return "vLLM 0.32 or newer and --enable-scale-out"
    return "VLLM_SERVER_DEV_MODE=1 in its environment (it opens the routes that change parameters)"


def _is_closed(text: str) -> bool:
    """Whether a 404 says that there is no such route, and not that there is no such adapter."""
    return '"detail"' in text


def _pause(attempt: int) -> float:
    return min(PAUSE * 2**attempt, LONGEST_PAUSE)


def _number(text: str | None) -> float:
    try:
        return min(float(text or 0), LONGEST_PAUSE)
    except ValueError:
        return 0.0


def _words(text: str) -> str:
    """The server's own words, on one line and not too many."""
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"]["message"])
    return " ".join(text.split())[:300]
