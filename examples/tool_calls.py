"""Real tool calls: the chat template offers a tool, the policy writes a call, the tool answers, the policy goes on.

    <|im_start|>system … {"type": "function", "function": {"name": "calc", …}} <|im_end|>
    <|im_start|>user 7*8+9<|im_end|>
    <|im_start|>assistant <tool_call>{"name": "calc", "arguments": {"expression": "7*8+9"}}</tool_call><|im_end|>
    <|im_start|>user <tool_response>65</tool_response><|im_end|>
    <|im_start|>assistant 65<|im_end|>

Only the two turns of the assistant train: not the tools, not the prompt, not the tool's answer.

    python examples/tool_calls.py runs/tool_model        # a tiny model with a chat template and a tokenizer of its own
    trimtab train examples/tool_calls.toml               # or train.model=a_folder_of_yours
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from trimtab.rollout import Problem, Turn
from trimtab.rollout.tasks import Generated, Kind
from trimtab.rollout.tasks.calculator import NotArithmetic, evaluate
from trimtab.rollout.tool_call import ToolCall, read_calls

CALC = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "compute",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
"""The tool as chat templates take it; the template of the model decides how it is shown to the policy."""
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}"
    "{% for one in messages %}{% if one.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ one.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ one.role }}\n{{ one.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A small one of the form that Qwen and Hermes models have."""
SPECIAL = (
    "<|pad|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


@dataclass
class Desk:
    """One episode: a turn with a call is answered by the tool; any other turn is the final answer."""

    problem: Problem

    def reset(self):
        return self.problem.prompt

    def step(self, answer, *, ended):
        _, calls = read_calls(answer)
        if not ended or not calls:
            return Turn(done=True)
        return Turn(messages=({"role": "tool", "content": answer_call(calls[0])},), done=False)


def answer_call(call: ToolCall) -> str:
    """What the tool says; a call that cannot be made is answered with the reason, and the policy may try again."""
    if call.fault or call.name != "calc":
        return call.fault or f"there is no tool {call.name}"
    try:
        return str(evaluate(str(call.arguments.get("expression", ""))))
    except NotArithmetic:
        return "that is not arithmetic"


def demonstration(problem):
    """Call the tool on the question, then repeat what it says. The warm start teaches this form with a few steps."""
    question = problem.prompt[0]["content"]
    call = f'<tool_call>{{"name": "calc", "arguments": {{"expression": "{question}"}}}}</tool_call>'
    return call, problem.answer


def calculate(settings, seed):
    """The task: products and sums that a small model cannot compute by itself."""

    def problem(stream):
        one, two, three = (stream.randrange(10 * settings.size) for _ in range(3))
        prompt = ({"role": "user", "content": f"{one}*{two}+{three}"},)
        return Problem(prompt=prompt, answer=str(one * two + three), tools=(CALC,))

    return Generated(Kind("tools", "", problem, environment=Desk, demonstration=demonstration), seed)


def write_model(folder: Path) -> None:
    """A folder as a model hub has it: a tiny Qwen3 with random parameters, a byte-level BPE, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    from trimtab.config.train import TaskSettings

    bpe = Tokenizer(models.BPE())
    digits, words = (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    bpe.decoder = decoders.ByteLevel()
    task = calculate(TaskSettings(), seed=0)
    named = {"pad_token": "<|pad|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    texts = [text for number in range(200) for text in demonstration(task.train(number))]
    texts.append(PreTrainedTokenizerFast(tokenizer_object=bpe, **named).apply_chat_template(
        [{"role": "user", "content": "7"}], tools=[CALC], tokenize=False, add_generation_prompt=True
    ))  # fmt: skip
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=512, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, **named)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
    }
    config = Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=4, tie_word_embeddings=False, **sizes, **ends)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    import torch

    torch.manual_seed(0)
    write_model(Path(sys.argv[1]))
