"""The only place that is a client of the verifiers library: its episodes ask, our engine answers.

Their own training client renders a whole chat to token ids and calls a server. This one hands on what is new since the
policy's last turn, so ids are written once, by the player, and come back with log-probs and versions from our engine.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.rollout.driven import Ask, Said
from trimtab.rollout.task import Message
from trimtab.rollout.tool_call import read_calls

ADDRESS = "trimtab://engine"
"""Stands where their configuration wants the address of a server; nothing is ever sent there."""
MODEL = "policy"


def theirs(name: str) -> Any:
    """A module of the library, imported when an episode needs it."""
    return importlib.import_module(f"verifiers.v1.{name}")


@dataclass
class Talk:
    """One episode of theirs while it runs: whom to ask, and why it had to be refused."""

    ask: Ask
    turns: int = 0
    refusal: str = ""


@dataclass
class EngineClient:
    """verifiers' `Client`. It knows an episode by the id of its trace, which they send with each call."""

    talks: dict[str, Talk] = field(default_factory=dict[str, Talk])

    async def get_response(
        self,
        dialect: Any,
        body: Mapping[str, Any],
        sampling: Any,
        session_id: str | None = None,
        turn: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One turn. How tokens are drawn is the run's decision, so the sampling that a harness asks for is not read."""
        del dialect, sampling, headers
        talk = self.talks.get(session_id or "")
        refusal = _refusal(talk, body, turn)
        if talk is None or refusal:
            if talk is not None:
                talk.refusal = talk.refusal or refusal
            raise theirs("errors").ProviderError(refusal, status_code=400)
        new = tuple(plain_message(message) for message in turn.tail)
        said = await talk.ask(new, tuple(plain_tool(tool) for tool in turn.tools) if not talk.turns else ())
        talk.turns += 1
        return response(said)

    async def relay(self, *given: object, **named: object) -> Any:
        raise NotImplementedError("trimtab answers whole turns; switch streaming off in the harness")

    relay_aux: Callable[..., Any] = relay

    async def close(self) -> None:
        """Nothing is open."""


def _refusal(talk: Talk | None, body: Mapping[str, Any], turn: Any) -> str:
    """Why this call cannot be a turn of the episode's one sequence; "" if it can."""
    if talk is None:
        return "this episode was not started by trimtab, or is over"
    if turn is None or body.get("stream"):
        return "the harness streams its answers, and an engine answers whole turns"
    if not talk.turns:
        return ""
    nodes, prefix = turn.trace.nodes, list(turn.prefix_node_ids)
    last = max((number for number, node in enumerate(nodes) if node.sampled), default=-1)
    if not prefix or prefix[-1] != last:
        return (
            f"turn {talk.turns + 1} does not continue what the policy read and wrote: the harness changed, shortened "
            "or branched the chat, and what was sampled is what must be trained on"
        )
    return ""


def plain_message(message: Any) -> Message:
    """One of their messages as chat templates take it: text only."""
    wire: dict[str, Any] = theirs("dialects.chat").message_to_wire(message)
    parts = wire.get("content")
    if isinstance(parts, list) and any(getattr(part, "type", "text") != "text" for part in message.content):
        raise ValueError(f"a {wire['role']} message holds something other than text, and the policy reads text only")
    return {**wire, "content": theirs("types").content_text(message.content) if message.content else ""}


def plain_tool(tool: Any) -> dict[str, object]:
    """One of their tools as chat templates take it."""
    return dict(theirs("clients.train").tool_to_wire(tool))


def response(said: Said) -> Any:
    """A turn as they expect it. Tool calls are read out of the text, which stays what was sampled."""
    types = theirs("types")
    text, calls = read_calls(said.text) if said.ended else (said.text, ())
    readable = [call for call in calls if not call.fault]
    made = [
        types.ToolCall(id=f"call_{said.num_read}_{place}", name=call.name, arguments=json.dumps(dict(call.arguments)))
        for place, call in enumerate(readable)
    ]
    finish = "length" if not said.ended else "tool_calls" if made else "stop"
    answer = types.Response(
        id="trimtab",
        created=0,
        model=MODEL,
        message=types.AssistantMessage(content=text if made else said.text, tool_calls=made or None),
        finish_reason=finish,
        usage=types.Usage(prompt_tokens=said.num_read, completion_tokens=said.num_written),
    )
    answer.raw = theirs("clients.train").serialize_completion(answer, MODEL)
    return answer


def install(client: EngineClient) -> Any:
    """Their description of a client that stands for this one. They build clients from descriptions, in one place."""
    server = theirs("interception.server")
    number = len(_CLIENTS)
    _CLIENTS.append(client)
    if not getattr(server.resolve_client, "knows_trimtab", False):
        otherwise: Callable[[Any], Any] = server.resolve_client

        def resolve(config: Any) -> Any:
            is_ours = str(config.base_url).startswith(ADDRESS)
            return _CLIENTS[int(config.base_url.rpartition("/")[2])] if is_ours else otherwise(config)

        resolve.knows_trimtab = True  # pyright: ignore[reportFunctionMemberAccess]
        server.resolve_client = resolve
    return theirs("clients").TrainClientConfig(base_url=f"{ADDRESS}/{number}", api_key_var="TRIMTAB_NO_KEY")


_CLIENTS: list[EngineClient] = []
