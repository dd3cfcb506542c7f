"""`trimtab serve`: a vLLM server that a run can train against, started with the flags that this needs."""

import os
import shlex
import sys
from pathlib import Path

from trimtab.cli.console import plain_console
from trimtab.rollout.launch import TOKEN, Part, plan, without_critic


def run_server(
    model: Path,
    more: list[str],
    *,
    host: str,
    port: int,
    slots: int,
    dtype: str,
    max_length: int,
    lora_rank: int,
    environment: Path | None,
    dry_run: bool,
) -> None:
    """Say what is started and why, then become it."""
    launch = plan(
        model if dry_run else without_critic(model),
        host=host,
        port=port,
        slots=slots,
        dtype=dtype,
        max_length=max_length,
        lora_rank=lora_rank,
        environment=environment,
        more=more,
        given=os.environ,
    )
    console = plain_console(stderr=not dry_run)
    console.print(f"serves   {model} at {launch.url}, with vLLM of {launch.python.parent.parent}")
    for part in (*launch.settings, *launch.flags):
        console.print(_line(part))
    if launch.warning:
        console.print(f"warning  {launch.warning}")
    if dry_run:
        words = [f"VLLM_API_KEY=${TOKEN}", *(part.words[0] for part in launch.settings)]
        console.print(f"command  {' '.join(words)} {shlex.join(launch.command)}", soft_wrap=True)
        return
    if launch.is_new_token:
        console.print(f"token    made for this server; the trainer needs it: export {TOKEN}={launch.token}")
    sys.stderr.flush()
    os.execve(launch.python, launch.command, launch.environment(os.environ))


def _line(part: Part) -> str:
    return f"  {' '.join(part.words):<44} {part.why}"
