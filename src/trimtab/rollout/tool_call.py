"""The only place that reads tool calls out of what a policy wrote, in the form that Hermes and Qwen templates teach.

<tool_call>{"name": "calculate", "arguments": {"expression": "37*48+9"}}</tool_call>
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

OPENING, CLOSING = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class ToolCall:
    """One call. `fault` says why it cannot be made; a tool then answers with it, and the policy can try again."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fault: str = ""


def read_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """What stands before the first call, and the calls in their order.

    >>> read_calls('so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    ('so ', (ToolCall(name='add', arguments={'a': 1}, fault=''),))
    >>> read_calls("<tool_call>{</tool_call>")[1][0].fault
    'the call is not JSON'
    """
    before, *rest = text.split(OPENING)
    return before, tuple(_read(part.split(CLOSING)[0], closed=CLOSING in part) for part in rest)


def _read(text: str, *, closed: bool) -> ToolCall:
    if not closed:
        return ToolCall("", fault=f"the call does not end with {CLOSING}")
    try:
        call = json.loads(text)
    except ValueError:
        return ToolCall("", fault="the call is not JSON")
    if not isinstance(call, dict):
        return ToolCall("", fault="the call is not a JSON object")
    held = cast("dict[str, Any]", call)
    name, arguments = held.get("name"), held.get("arguments", {})
    if not isinstance(name, str) or not name:
        return ToolCall("", fault="the call has no name")
    if not isinstance(arguments, dict):
        return ToolCall(name, fault="the arguments are not a JSON object")
    return ToolCall(name, cast("dict[str, Any]", arguments))
