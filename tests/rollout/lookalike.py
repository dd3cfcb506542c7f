"""A small server that speaks vLLM's protocol, so that every fault of a real one can be switched on.

Its log-probs are real: a tiny transformers model computes them, behind a prefix cache of real keys and values. Only the
tokens are not its own: they are drawn from all ids alike, so that one forward pass scores a whole answer.
"""

import asyncio
import copy
import functools
import importlib.util
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch
from safetensors.torch import load_file
from transformers import DynamicCache

from trimtab.rollout.adapter import Adapter, read_adapter
from trimtab.train.policy import Policy

BLOCK, LENGTH, SLOTS = 8, 80, 8
if importlib.util.find_spec("sniffio") is None:  # the client looks for it at every request, in all of the path
    sys.modules["sniffio"] = None  # type: ignore[assignment]


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 600))

    return run


class Lookalike:
    """`async with Lookalike(policy, folder) as server`: `server.url` answers until the block ends.

    `faults` holds the names of what goes wrong; `times` says how often, for those that pass.
    """

    def __init__(
        self, policy: Policy, folder: Path, *, token: str = "", faults: str = "", times: int = 0, rank: int = 0
    ) -> None:
        self.policy, self.folder, self.token, self.rank = policy, folder, token, rank
        self.faults = set(faults.split())
        self.times = times
        self.hold = asyncio.Event()
        self.hold.set()
        self.counted: Counter[str] = Counter()
        self.busiest = self.running = 0
        self.sent: list[dict[str, Any]] = []
        self.port = 0
        self._earlier: dict[str, Any] | None = None
        self._streams: set[asyncio.StreamWriter] = set()
        self.fresh()

    def fresh(self) -> None:
        """As after a start: the parameters of the folder, no label, an empty cache."""
        self.model = copy.deepcopy(self.policy.model)
        self.model.load_state_dict(load_file(self.folder / "model.safetensors"))
        self.label = "default"
        self.cache: dict[tuple[str, tuple[int, ...]], DynamicCache] = {}
        self.adapters: dict[str, Adapter] = {}
        self.go = asyncio.Event()
        self.go.set()
        self.stop = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "Lookalike":
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """As kill -9 does: nobody listens, every connection is reset."""
        self._server.close()
        for stream in self._streams:
            stream.transport.abort()
        self._streams.clear()

    # ----------------------------------------------------------------------------------------------------------- http

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._streams.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                target = urlsplit(lines[0].split()[1])
                status, found = await self._route(target.path, dict(parse_qsl(target.query)), headers, body)
                if not self._write(writer, target.path, status, found):
                    return
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _passes(self, fault: str) -> bool:
        """Whether a fault strikes this time."""
        if fault not in self.faults or (self.times and self.counted[fault] >= self.times):
            return False
        self.counted[fault] += 1
        return True

    def _write(self, writer: asyncio.StreamWriter, path: str, status: int, found: dict[str, Any]) -> bool:
        body = json.dumps(found).encode()
        is_answer = path == "/inference/v1/generate" and status == 200
        if is_answer and self._passes("half_json"):
            body = body[: len(body) // 2]
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nretry-after: 1\r\n\r\n".encode()
        if is_answer and self._passes("breaks"):
            writer.transport.abort()
            return False
        if is_answer and self._passes("truncated"):
            writer.write(head + body[: len(body) // 2])
            writer.close()
            return False
        writer.write(head + body)
        return True

    async def _route(
        self, path: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, Any]]:
        is_guarded = self.token and path.startswith(("/v1", "/inference"))
        if is_guarded and headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"error": "Unauthorized"}
        given = json.loads(body) if body else {}
        self.counted[path] += 1
        if path == "/inference/v1/generate":
            return await self._generate(given)
        if path in self.closed:
            return 404, {"detail": "Not Found"}
        return await self._other(path, query, given)

    @property
    def closed(self) -> set[str]:
        no_tokenizer = {"/tokenizer_info"} if "no_tokenizer_info" in self.faults else set()
        no_adapters = {"/v1/load_lora_adapter"} if not self.rank or "no_updates" in self.faults else set()
        return no_tokenizer | no_adapters | ({"/server_info", "/pause"} if "no_dev_mode" in self.faults else set())

    async def _other(self, path: str, query: dict[str, str], given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        tokenizer = self.policy.tokenizer
        if path == "/v1/models":
            return 200, {"data": [{"root": str(self.folder), "max_model_len": LENGTH}]}
        if path == "/version":
            return 200, {"version": "lookalike"}
        if path == "/server_info":
            return 200, {
                "vllm_config": {
                    "model_config": {"dtype": "torch.float32"},
                    "cache_config": {"block_size": BLOCK, "enable_prefix_caching": True},
                    "scheduler_config": {"max_num_seqs": SLOTS},
                    "lora_config": {"max_lora_rank": self.rank} if self.rank else None,
                }
            }
        if path == "/tokenizer_info":
            template = "{{ messages }}" if "template" in self.faults else tokenizer.chat_template
            return 200, {
                "eos_token": "</s>" if "eos" in self.faults else tokenizer.eos_token,
                "chat_template": template,
            }
        if path == "/detokenize":
            ids = given["tokens"]
            return 200, {"prompt": tokenizer.decode(ids[::-1] if "tokenizer" in self.faults else ids)}
        if path == "/pause":
            assert query == {"mode": "abort"}
            self.go.clear()
            self.stop.set()
        elif path == "/resume":
            self.stop = asyncio.Event()
            self.go.set()
        elif path == "/collective_rpc":
            return self._reload(given)
        elif path == "/v1/load_lora_adapter":
            return self._load_adapter(given)
        elif path == "/v1/unload_lora_adapter":
            if self.adapters.pop(given["lora_name"], None) is None:
                return 404, _error("The lora adapter cannot be found.")
        elif path == "/update_weight_version":
            self.label = given["new_version"]
        elif path == "/reset_prefix_cache":
            if "reset_refused" in self.faults:
                return 200, {"success": False}
            if not self.faults & {"stale_cache", "stale_cache_silent"}:
                self.cache.clear()
            return 200, {"success": True}
        else:
            return 404, {"detail": "Not Found"}
        return 200, {"status": "ok"}

    def _reload(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert given["method"] == "reload_weights"
        try:
            state = load_file(Path(given["kwargs"]["weights_path"]) / "model.safetensors")
        except Exception as error:
            return 500, {"error": {"message": f"Worker failed with error {error}"}}
        if self._passes("old_parameters"):
            return 200, {"results": [None]}
        if "half_of_them" in self.faults:
            state = {name: tensor for name, tensor in state.items() if "mlp" not in name}
        self.model.load_state_dict(state, strict="half_of_them" not in self.faults)
        return 200, {"results": [None]}

    def _load_adapter(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name, before = given["lora_name"], list(self.adapters.values())
        if name in self.adapters:
            return 400, _error(f"The lora adapter '{name}' has already been loaded.")
        try:
            found = read_adapter(Path(given["lora_path"]))
            assert {"r", "lora_alpha", "target_modules"} <= set(found.config)
        except Exception:
            return 404, _error(f"Loading lora {name} failed: No adapter found")
        if self._passes("old_adapter") and before:
            found = before[-1]
        if "no_adapter" in self.faults:
            found = Adapter({}, found.config)
        if "half_of_it" in self.faults:
            found = Adapter({one: values for one, values in found.state.items() if "mlp" not in one}, found.config)
        self.adapters[name] = found
        return (503, _error("lost")) if self._passes("loaded_but_busy") else (200, {"Success": ""})

    # ----------------------------------------------------------------------------------------------------- generating

    async def _generate(self, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self._passes("busy"):
            return 503, {"error": {"message": "too many requests"}}
        ids, how = given["token_ids"], given["sampling_params"]
        if max(ids) >= len(self.policy.tokenizer) + ("vocabulary" in self.faults):
            return 400, {"error": {"message": f"Token id {max(ids)} is out of vocabulary"}}
        if max(ids) >= len(self.policy.tokenizer):
            ids = [min(one, len(self.policy.tokenizer) - 1) for one in ids]
        if given.get("model", "") and given["model"] not in self.adapters:
            return 404, _error(f"The model `{given['model']}` does not exist.")
        self.sent.append(given)
        self.running += 1
        self.busiest = max(self.busiest, self.running)
        try:
            await self.go.wait()
            stop = self.stop
            if given.get("model", "") and given["model"] not in self.adapters:
                return 404, _error(f"The model `{given['model']}` does not exist.")
            label, scored = self.label, self._score(ids, how, given.get("model", ""))
            aborted = False
            if how.get("stop_token_ids") and not self.hold.is_set():
                waits = {asyncio.ensure_future(self.hold.wait()), asyncio.ensure_future(stop.wait())}
                _, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in left:
                    task.cancel()
                aborted = stop.is_set()
        finally:
            self.running -= 1
        return 200, self._answer(given, *scored, label=label, aborted=aborted)

    def _score(self, ids: list[int], how: dict[str, Any], adapter: str) -> tuple[list[int], torch.Tensor, int]:
        """Draw the answer and score it, with the cached part of the prompt as it was computed back then."""
        draw = random.Random(how.get("seed", 0))
        answer: list[int] = []
        while len(answer) < how["max_tokens"] and not (answer and answer[-1] in how.get("stop_token_ids", ())):
            answer.append(draw.randrange(len(self.policy.tokenizer)))
        temperature = how.get("temperature", 1.0) or 1.0
        temperature = 1.0 if "raw" in self.faults else temperature
        temperature *= 1.25 if "warmer" in self.faults else 1.0
        temperature **= 2 if "square" in self.faults else 1
        whole = (len(ids) - 1) // BLOCK * BLOCK
        prefix = tuple(ids[:whole])
        key = ("" if "one_cache" in self.faults else adapter, prefix)
        cached = whole if key in self.cache else 0
        if whole and not cached:
            self.cache[key] = self._forward(list(prefix), DynamicCache(), adapter)[1]
        past = DynamicCache()
        if whole:
            for index, layer in enumerate(self.cache[key].layers):
                past.update(layer.keys.clone(), layer.values.clone(), index)
        logits, _ = self._forward([*ids[whole:], *answer[:-1]], past, adapter)
        logits = logits[len(ids) - whole - 1 :]
        return answer, (logits / temperature).log_softmax(-1), cached

    def _forward(self, ids: list[int], past: DynamicCache, adapter: str) -> tuple[torch.Tensor, DynamicCache]:
        state = self.model.state_dict()
        state = self.adapters[adapter].merged(state) if adapter else state
        given = {"input_ids": torch.tensor([ids]), "past_key_values": past, "use_cache": True}
        with torch.inference_mode():
            out = torch.func.functional_call(self.model, state, kwargs=given)
        return out.logits[0].float(), out.past_key_values

    def _answer(
        self, given: dict[str, Any], answer: list[int], logp: torch.Tensor, cached: int, *, label: str, aborted: bool
    ) -> dict[str, Any]:
        stops = given["sampling_params"].get("stop_token_ids", ())
        if aborted:
            answer = answer[: max(len(answer) // 2, 1)]
        finish = "abort" if aborted else "stop" if answer[-1] in stops else "length"
        chosen = logp[range(len(answer)), answer].tolist()
        content = [{"token_id": token, "logprob": value} for token, value in zip(answer, chosen, strict=True)]
        if given["sampling_params"].get("logprobs"):
            best = logp[0].topk(5)
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            content[0]["top_logprobs"] = [{"token_id": token, "logprob": value} for token, value in pairs]
        if finish == "stop" and "no_stop_logp" in self.faults:
            content = content[:-1]
        if finish == "stop" and "no_stop_id" in self.faults:
            answer, content = answer[:-1], content[:-1]
        if "no_number" in self.faults:
            content[-1]["logprob"] = -9999.0
        spans = [] if "no_labels" in self.faults else [{"version": label, "start": 0, "end": len(answer)}]
        found = {
            "model": "base" if "renamed" in self.faults else given.get("model") or "base",
            "request_id": f"generate-tokens-{given.get('request_id', '')}",
            "usage": {"prompt_tokens_details": {"cached_tokens": 0 if "stale_cache_silent" in self.faults else cached}},
            "choices": [
                {
                    "finish_reason": finish,
                    "token_ids": answer,
                    "weight_versions": spans,
                    "logprobs": {"content": content},
                }
            ],
        }
        earlier, self._earlier = self._earlier, found
        return earlier if earlier is not None and self._passes("duplicated") else found


def _error(said: str) -> dict[str, Any]:
    return {"error": {"message": said}}
