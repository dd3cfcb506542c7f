"""A verifiers environment for tests: write a digit, in two turns, with rewards that a small policy finds at once."""

import asyncio

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

ROWS = 400


class DigitData(vf.TaskData):
    does: str = ""


class DigitTask(vf.Task[DigitData]):
    @vf.reward(weight=0.5)
    async def digits(self, trace: vf.Trace) -> float:
        """The share of characters of all turns that are digits."""
        if self.data.does == "raises":
            raise RuntimeError("boom")
        text = "".join(str(node.message.content or "") for node in trace.nodes if node.sampled)
        return sum(one.isdigit() for one in text) / max(1, len(text))

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        """The share of turns that the policy ended itself."""
        calls = [call for call in trace.calls if call.node is not None]
        return sum(call.finish_reason == "stop" for call in calls) / max(1, len(calls))


class DigitConfig(vf.TasksetConfig):
    does: str = ""
    """What goes wrong: raises, rewrites, sleeps; empty for nothing."""


class DigitTasks(vf.Taskset[DigitTask, DigitConfig]):
    def load(self):
        for number in range(ROWS):
            yield DigitTask(DigitData(prompt=f"{number}?", does=self.config.does), self.config.task)


class InProcess(vf.Harness[vf.HarnessConfig]):
    """Asks twice, in this process: first the prompt, then the answer and a word more."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> ProgramResult:
        messages = [{"role": "user", "content": data.prompt}]
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as web:
            for _ in range(2):
                body = {"model": ctx.model, "messages": messages}
                async with web.post(f"{endpoint}/chat/completions", json=body) as answer:
                    if answer.status != 200:
                        return ProgramResult(exit_code=1, stdout="", stderr=await answer.text())
                    message = (await answer.json())["choices"][0]["message"]
                if data.does == "sleeps":
                    await asyncio.sleep(60)
                if data.does == "rewrites":
                    message = {**message, "content": "7"}
                messages += [message, {"role": "user", "content": "more"}]
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["DigitTasks", "InProcess"]
