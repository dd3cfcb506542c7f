"""A verifiers environment for tests: write digits, in two turns, with rewards that a small policy finds at once."""

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

ROWS = 400


class DigitData(vf.TaskData):
    wanted: str = "1"


class DigitTask(vf.Task[DigitData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        """The share of characters of all turns that are the wanted digit."""
        text = "".join(str(node.message.content or "") for node in trace.nodes if node.sampled)
        return sum(one == self.data.wanted for one in text) / max(1, len(text))


class DigitConfig(vf.TasksetConfig):
    fails: int = 0
    """One task in so many raises when it is judged; 0: none."""


class DigitTasks(vf.Taskset[DigitTask, DigitConfig]):
    def load(self):
        for number in range(ROWS):
            yield DigitTask(DigitData(prompt=f"{number}?", wanted=str(number % 2)), self.config.task)


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
                messages += [message, {"role": "user", "content": "more"}]
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["DigitTasks", "InProcess"]
