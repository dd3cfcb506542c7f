"""Prompts and ends as published models have them: tools, several end tokens, long and very unequal prompts."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from trimtab.config.train import EngineSettings, ModelSettings, TaskSettings
from trimtab.errors import ConfigError
from trimtab.rollout.collect import Collector
from trimtab.rollout.engine import Request, Sampling
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.rows import lay_out
from trimtab.rollout.task import Problem, open_task
from trimtab.rollout.tokenizer import CHAT_OPENING, character_tokenizer, decode, encode_prompt
from trimtab.rollout.weights import digest
from trimtab.train import TrainSettings, train
from trimtab.train.logp import token_pass
from trimtab.train.policy import Policy, load, published, save
from trimtab.train.setup import new_collector, new_engine
from trimtab.train.show.progress import Silent
from trimtab.train.warmstart import demonstrations

SPECIALS = ("<|im_end|>", "<|endoftext|>", "<|im_start|>", "<|pad|>", "<|unk|>")
END, TEXT_END = 0, 1
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>"
    "<|im_end|>\n{% endif %}{% for message in messages %}"
    "{% if message.role == 'nobody' %}{{ raise_exception('nobody may speak') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% if message.tool_calls %}{% for call in message.tool_calls %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML with tools, as Qwen writes them."""
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds “two” numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}],
}
REPLY = {"role": "tool", "name": "add", "content": "3"}


def words() -> PreTrainedTokenizerFast:
    alphabet = [*map(chr, range(32, 127)), "\n", "“", "”"]
    built = Tokenizer(models.WordLevel({one: place for place, one in enumerate([*SPECIALS, *alphabet])}, "<|unk|>"))
    built.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    built.decoder = decoders.Fuse()
    built.add_special_tokens(list(SPECIALS))
    return PreTrainedTokenizerFast(
        tokenizer_object=built, eos_token=SPECIALS[END], pad_token="<|pad|>", chat_template=TEMPLATE
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that names two end tokens; its tokenizer names one of them."""
    path, tokenizer = tmp_path_factory.mktemp("wild") / "model", words()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=END,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    with torch.no_grad():  # sharper than at random, and either end is likely
        model.model.norm.weight.mul_(8)
    model.generation_config.eos_token_id = [END, TEXT_END]
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    return load(folder)


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chats of one word and of hundreds, with tools, without, and with calls that were answered before."""
    path, stream = tmp_path_factory.mktemp("data") / "chats.jsonl", random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(60):
            words = "".join(stream.choices("abcdef ", k=(1, 9, 350)[number % 3]))
            asked = [{"role": "user", "content": f"{number}{words}"}]
            row = {"prompt": asked if number % 2 else [*asked, CALL, REPLY], "answer": "3"}
            print(json.dumps(row if number % 4 == 1 else {**row, "tools": [ADD]}), file=file)
    return path


def settings(folder: Path, problems: Path, **changed: object) -> TrainSettings:
    return TrainSettings(
        task=TaskSettings(name="file", file=problems, reward="exact"),
        model=ModelSettings(path=folder),
        engine=EngineSettings(format="fp32"),
        runtime="inline",
        staleness=0,
        warm_start_steps=0,
        steps=2,
        prompts_per_step=6,
        samples_per_prompt=4,
        max_new_tokens=5,
        eval_every=2,
        eval_prompts=4,
        checkpoint_every=0,
        early_stop="never",
    ).model_copy(update=changed)


def leaning(policy: Policy, towards: int, amount: float) -> dict[str, Tensor]:
    """Parameters in which other tokens than `towards` and the two ends are rare enough that all three are drawn."""
    state = {name: tensor.clone() for name, tensor in published(policy.model).items()}
    table = state["model.embed_tokens.weight"]
    for one in (END, TEXT_END, towards):
        table[one] *= amount
    return state


# --------------------------------------------------------------------------------------------------- several end tokens


def test_every_end_token_of_the_generation_config_is_one_and_stays_one_when_saved(
    policy: Policy, tmp_path: Path
) -> None:
    assert (policy.eos_id, policy.eos_ids) == (END, (END, TEXT_END))
    save(policy, tmp_path / "model")
    assert GenerationConfig.from_pretrained(tmp_path / "model").eos_token_id == [END, TEXT_END]
    assert load(tmp_path / "model").eos_ids == (END, TEXT_END)


def test_one_end_token_is_the_tokenizers_and_one_that_the_model_does_not_embed_is_left_out(folder: Path) -> None:
    policy = load(folder)
    for named, expected in ((None, (END,)), (END, (END,)), (7, (END, 7)), ([TEXT_END, 50256], (END, TEXT_END))):
        policy.model.generation_config.eos_token_id = named
        assert policy.eos_ids == expected


def test_an_answer_ends_at_any_of_them_and_the_end_trains_and_is_no_part_of_the_text(
    policy: Policy, folder: Path, problems: Path
) -> None:
    how = settings(folder, problems, samples_per_prompt=32, max_new_tokens=12)
    built = new_collector(policy, how)
    state = leaning(policy, 20, 3.0)
    built.engine.load(state, 0, digest(state))
    played = built.play([built.task.train(0)] * 64, range(64), Sampling(12, 1.0))
    last = [one.ids[-1] for one in played if one.ended]
    assert {END, TEXT_END} == set(last)
    for one in played:
        (sample,) = one.samples
        inner = sample.ids[:-1] if one.ended else sample.ids
        assert not set(inner) & {END, TEXT_END}
        assert one.ended == (sample.ids[-1] in (END, TEXT_END))
        assert one.attempt.ended == one.ended
        assert one.answers == [decode(policy.tokenizer, list(inner))]
        assert one.trainable[-1]
    built.close()


def test_with_one_end_token_the_other_is_a_word_like_any(policy: Policy) -> None:
    """The same seeds with one end token: equal up to the first end, and on past the one that is none now."""
    from trimtab.rollout.embedded import Embedded
    from trimtab.train.policy import frozen_copy

    state, asked = leaning(policy, 20, 3.0), [Request((5, 6, 7), seed) for seed in range(48)]
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for ends in ((END,), (END, TEXT_END)):
        engine = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=ends)
        engine.load(state, 0, digest(state))
        found[ends] = [sample.ids for sample in engine.sample(asked, Sampling(12, 1.0))]
    longer = 0
    for one, both in zip(*found.values(), strict=True):
        assert one[: len(both)] == both
        longer += len(one) > len(both)
        assert len(one) == len(both) or both[-1] == TEXT_END
    assert longer > 5


# ---------------------------------------------------------------------------------------------------------------- tools


def test_tools_and_calls_are_written_as_transformers_writes_them(policy: Policy) -> None:
    chat = ({"role": "user", "content": "1+2?"}, CALL, REPLY)
    ids = encode_prompt(policy.tokenizer, chat, (ADD,))
    expected = policy.tokenizer.apply_chat_template(
        list(chat), tools=[ADD], add_generation_prompt=True, return_dict=False
    )
    assert ids == expected
    text = decode(policy.tokenizer, ids)
    assert '"name": "add"' in text.split("</tools>")[0]
    assert "“two”" in text
    assert "<tool_call>" in text
    assert text.endswith("<|im_start|>assistant\n")
    assert policy.tokenizer.unk_token_id not in ids
    assert encode_prompt(policy.tokenizer, chat) == policy.tokenizer.apply_chat_template(
        list(chat), add_generation_prompt=True, return_dict=False
    )


def test_the_character_tokenizer_writes_a_chat_with_tools_as_people_see_it() -> None:
    problem = Problem(({"role": "user", "content": "1+2?"}, CALL, REPLY), "3", tools=(ADD,))
    tokenizer = character_tokenizer(problem.text + CHAT_OPENING)
    ids = encode_prompt(tokenizer, problem.prompt, problem.tools)
    assert decode(tokenizer, ids) == problem.text + CHAT_OPENING
    assert problem.text.startswith('tools: [{"type": "function"')


def no_tools(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("prompt", "change", "said"),
    [
        ("1+2?", None, "is a text and offers 1 tools, so there is no place"),
        (({"role": "user", "content": "1"},), no_tools, "chat template does not write them, so the policy would never"),
        (({"role": "nobody", "content": "1"},), None, r"refuses the roles \['nobody'\] \(nobody may speak\)"),
    ],
)
def test_tools_that_the_policy_would_not_see_are_refused(
    prompt: str | tuple[dict[str, str], ...], change: Callable[[PreTrainedTokenizerFast], None] | None, said: str
) -> None:
    tokenizer = words()
    if change is not None:
        change(tokenizer)
    with pytest.raises(ConfigError, match=said):
        _ = encode_prompt(tokenizer, prompt, (ADD,))


def test_a_data_file_brings_tools_as_a_list_or_as_text_under_any_name(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "1"}, {"role": "assistant", "tool_calls": CALL["tool_calls"]}, REPLY]
    rows = [{"prompt": [*chat, {"role": "user", "content": str(one)}], "answer": "3"} for one in range(40)]
    for name, value, options in (
        ("tools", [ADD], {}),
        ("tools", json.dumps([ADD]), {}),
        ("functions", [ADD], {"tools_column": "functions"}),
        ("tools", "mine", {"tools_column": "none"}),
        ("tools", None, {}),
    ):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f"{json.dumps({**row, name: value})}\n" for row in rows))
        task = open_task(TaskSettings(name="file", file=path, options=options), 0)
        assert task.train(0).tools == (() if value in ("mine", None) else (ADD,))
        assert task.train(0).columns[name] == value  # a reward sees it too
        assert task.train(0).prompt[1] == {**CALL, "content": ""}


def test_samples_of_one_prompt_share_its_ids_and_another_tool_is_another_prompt(
    policy: Policy, folder: Path, problems: Path
) -> None:
    built = new_collector(policy, settings(folder, problems))
    state = published(policy.model)
    built.engine.load(state, 0, digest(state))
    chat = ({"role": "user", "content": "1+2?"},)
    other = {"type": "function", "function": {"name": "sub"}}
    given = [Problem(chat, "3", tools=tools) for tools in ((ADD,), (ADD,), (other,), ())]
    first, same, renamed, none = built.play(given, range(4), Sampling(2, 1.0))
    assert first.prompt_ids is same.prompt_ids
    assert len({first.prompt_ids, renamed.prompt_ids, none.prompt_ids}) == 3
    (shown,) = demonstrations(policy, built.task, given[:1]).groups()
    assert tuple(shown.ids[: len(first.prompt_ids)].tolist()) == first.prompt_ids
    built.close()


# ------------------------------------------------------------------------------------------- long and unequal prompts


def collected(policy: Policy, how: TrainSettings, tickets: range) -> tuple[Collector, Rollouts]:
    built = new_collector(policy, how, engine=new_engine(policy, how, slots=7))
    state = published(policy.model)
    built.engine.load(state, 0, digest(state))
    return built, built.collect(tickets)


def test_prompts_much_longer_than_answers_and_of_unlike_lengths_give_the_same_log_probs_on_both_sides(
    policy: Policy, folder: Path, problems: Path
) -> None:
    built, rollouts = collected(policy, settings(folder, problems), range(12))
    written = torch.stack([trains.sum() for trains in rollouts.trainable.split(rollouts.length.tolist())])
    prompts = rollouts.length - written
    assert int(prompts.max()) > 8 * int(prompts.min())
    assert int(prompts.min()) > int(written.max())
    order = torch.arange(rollouts.num_sequences)
    together = token_pass(policy.model, lay_out(rollouts, order, pad_id=policy.pad_id), temperature=1.0).logp
    alone = [
        token_pass(policy.model, lay_out(rollouts, order[at : at + 1], pad_id=policy.pad_id), temperature=1.0).logp
        for at in range(len(order))
    ]
    torch.testing.assert_close(together, torch.cat(alone), atol=2e-5, rtol=0)
    torch.testing.assert_close(together.detach(), rollouts.logp_rollout, atol=2e-5, rtol=0)
    built.close()


@pytest.mark.usefixtures("undrawn_here")
def test_a_step_on_them_is_the_same_where_one_prompt_alone_is_more_than_a_micro_batch(
    folder: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.rollout.reward.exact", lambda attempt: float(sum(attempt.ids)))
    found: list[dict[str, float]] = []
    for most in (64, 8192):
        run = tmp_path / str(most)
        small = {"steps": 1, "prompts_per_step": 4, "samples_per_prompt": 2, "eval_every": 1, "eval_prompts": 1}
        how = settings(folder, problems, **small, max_tokens_per_micro_batch=most, run_dir=run)
        assert train(how, "grpo", progress=Silent()).steps == 1
        assert load(run / "model").eos_ids == (END, TEXT_END)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found += [line for line in lines if "train/grad_norm" in line]
    first, second = found
    assert first["train/grad_norm"] > 0
    assert first["train/grad_norm"] == pytest.approx(second["train/grad_norm"], rel=1e-4)
