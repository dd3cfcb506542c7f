"""The only place that shows texts: training episodes turn by turn, and answers to held-out prompts."""

from html import escape
from typing import cast

from trimtab.report.data import Json, RunData, number, objects
from trimtab.report.section import cut, question, table
from trimtab.report.words import counted, percent

SHOWN = 6
"""Episodes on the page: two each from the first, a middle and the last evaluation."""
SHOWN_ANSWERS = 12


def episodes(run: RunData) -> str:
    """A few training episodes: the author of each turn, the reward, and the age of the sampler."""
    chosen = _chosen(run.transcripts)
    if not chosen:
        return question("transcripts", "What was it trained on?", "Not known: transcripts.jsonl is missing or empty.")
    cards = "".join(_card(run, line) for line in chosen)
    environment = any(turn.get("by") == "environment" for line in chosen for turn in objects(line.get("turns")))
    said = f"{counted(len(chosen), 'episode')} of {len(run.transcripts)} recorded, as sampled." + (
        " Text of the environment is shown separately. Its tokens never train." if environment else ""
    )
    return question("transcripts", "What was it trained on?", said, f'<div class="episodes">{cards}</div>')


def _chosen(lines: tuple[Json, ...]) -> list[Json]:
    """The episodes with the highest and the lowest reward at the first, a middle and the last recorded step."""
    steps = sorted({int(step) for line in lines if (step := number(line.get("step"))) is not None})
    if not steps:
        return []
    picked: list[Json] = []
    for step in sorted({steps[0], steps[len(steps) // 2], steps[-1]}):
        here = [line for line in lines if number(line.get("step")) == step]
        here.sort(key=lambda line: number(line.get("reward")) or 0.0)
        picked += [here[0], here[-1]] if len(here) > 1 else here
    return picked[:SHOWN]


def _card(run: RunData, line: Json) -> str:
    turns = "".join(
        f'<div class="turn {"environment" if turn.get("by") == "environment" else "policy"}">'
        f"<span>{escape(str(turn.get('by', '')))}</span><pre>{cut(str(turn.get('text', '')))}</pre></div>"
        for turn in objects(line.get("turns"))
    )
    return (
        f"<article><header>step {escape(str(line.get('step')))} · {' · '.join(_facts(run, line))}</header>"
        f'<div class="turn prompt"><span>prompt</span><pre>{cut(_prompt(line.get("prompt")))}</pre></div>'
        f"{turns}</article>"
    )


def _facts(run: RunData, line: Json) -> list[str]:
    """Reward or its status, advantage, age, kept share."""
    status, reward = str(line.get("status") or "ok"), number(line.get("reward"))
    judged = reward is not None and status == "ok"
    kind = "right" if judged and (reward or 0.0) > 0 else "wrong"
    facts = [
        f'<b class="{kind}">reward {reward:g}</b>' if judged else f'<b class="wrong">no reward ({escape(status)})</b>'
    ]
    advantage, kept, age = number(line.get("advantage")), number(line.get("kept_fraction")), _age(run, line)
    if advantage is not None:
        facts.append(f"advantage {advantage:+.2f}")
    if age is not None:
        facts.append("fresh" if age == 0 else f"{counted(age, 'version')} old")
    if kept is not None and kept < 1:
        facts.append(f"{percent(kept)} kept" if kept else "rejected")
    message = line.get("message")
    return [*facts, escape(str(message)[:200])] if message else facts


def _age(run: RunData, line: Json) -> int | None:
    """Versions between the policy that sampled and the one that learned."""
    version, step = number(line.get("version")), number(line.get("step"))
    now = next((number(m.get("version")) for m in run.metrics if number(m.get("step")) == step), None)
    if version is None or (now is None and step is None):
        return None
    return max(0, int((now if now is not None else step or 0.0) - version))


def _prompt(prompt: object) -> str:
    """Text, or chat messages one after the other."""
    if isinstance(prompt, list):
        return "\n".join(
            f"{message.get('role')}: {message.get('content')}" for message in objects(cast(object, prompt))
        )
    return str(prompt)


def answers(run: RunData) -> str:
    """Answers to the same held-out prompts at the first evaluation and at the last one that used them."""
    samples = [sample for sample in run.samples if number(sample.get("step")) is not None and "prompt" in sample]
    if not samples:
        return question("answers", "What does it write?", "Not known: samples.jsonl is missing or empty.")
    first = {_prompt(sample["prompt"]): sample for sample in reversed(samples)}
    last = {_prompt(sample["prompt"]): sample for sample in samples}
    begin = int(samples[0]["step"])
    prompts = [_prompt(sample["prompt"]) for sample in samples if int(sample["step"]) == begin][:SHOWN_ANSWERS]
    end = int(last[prompts[0]]["step"])
    rows = [
        [f'<td class="code">{cut(prompt, 400)}</td>', _answer(first[prompt]), _answer(last[prompt])]
        for prompt in prompts
    ]
    asked = counted(len(prompts), "validation prompt")
    said = f"Greedy answers to {asked}. Prompts that it got wrong after the warm start come first."
    return question("answers", "What does it write?", said, table(("prompt", f"step {begin}", f"step {end}"), rows))


def _answer(sample: Json) -> str:
    kind, sign = ("right", "✓") if sample.get("is_right") else ("wrong", "✗")
    return f'<td class="code {kind}">{cut(str(sample.get("answer", "")), 400)} {sign}</td>'
