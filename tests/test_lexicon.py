"""Other frameworks' words: every row names something that exists here, and every hint knows them."""

import pytest
from tests.docs.test_docs import ROOT
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab.cli.words import settings
from trimtab.errors import closest, nearest, suggestion, unknown_name
from trimtab.lexicon import Alias, aliases, meanings
from trimtab.signal import METRICS, catalog, names
from trimtab.signal.batch import FIELDS

FRAMEWORKS = {"TRL", "verl", "slime", "SkyRL", "AReaL", "OpenRLHF", "NeMo-RL", "prime-rl"}
OTHER_FIELDS = {"trainable", "reward", "group", "logp_current", "advantage", "entropy", "value", "returns", "kl"}
SETTINGS = {key for key, _ in settings()}
SIGNAL = {"coef", "into", "on", "anchor", "ratio", *(setting for f in catalog().values() for setting in f.settings)}


def exists(one: Alias) -> bool:
    if one.kind == "field":
        return one.ours in {*FIELDS, *OTHER_FIELDS}
    if one.kind == "recipe":
        return one.ours in names()
    if one.kind == "metric":
        return one.ours in {spec.name for spec in METRICS} or any(_matches(one.ours, spec.name) for spec in METRICS)
    table, _, setting = one.ours.rpartition(".")
    return one.ours in SETTINGS or (table in SETTINGS and table.startswith("signal.") and setting in SIGNAL)


def _matches(name: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern)


def test_every_alias_names_something_that_exists() -> None:
    assert [one for one in aliases() if not exists(one)] == []
    assert {one.framework for one in aliases()} == FRAMEWORKS
    assert {one.kind for one in aliases()} == {"field", "setting", "recipe", "metric"}
    assert len({(one.theirs, one.framework, one.kind, one.ours) for one in aliases()}) == len(aliases()) >= 400


@pytest.mark.parametrize(
    ("word", "frameworks", "ours"),
    [
        ("old_log_prob", {"verl"}, {"logp_old"}),
        ("old_logprobs", {"AReaL"}, {"logp_rollout"}),
        ("ref_log_probs", {"slime"}, {"logp_ref"}),
        ("epsilon_high", {"TRL"}, {"signal.loss.band"}),
        ("num_generations", {"TRL"}, {"train.samples_per_prompt"}),
        ("learning_rate", {"TRL"}, {"train.lr"}),
        ("loss_agg_mode=seq-mean-token-mean", {"verl"}, {"signal.weighting"}),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", {"verl"}, {"signal.weighting"}),
        ("--eps-clip-high", {"slime", "SkyRL"}, {"signal.loss.band"}),
        (
            "clip_ratio",
            {"verl", "SkyRL", "AReaL", "TRL"},
            {"signal.loss.band", "signal.loss.fraction", "*/clipped_tokens"},
        ),
    ],
)
def test_a_word_has_all_its_meanings(word: str, frameworks: set[str], ours: set[str]) -> None:
    found = meanings(word)
    assert {one.framework for one in found} == frameworks
    assert {one.ours for one in found} == ours


@pytest.mark.parametrize(
    ("word", "choices", "hint"),
    [
        ("old_log_prob", FIELDS, "did you mean 'logp_old'? verl calls it 'old_log_prob'"),
        ("gpro", names(), "did you mean 'grpo'?"),
        ("daapo", names(), "did you mean 'dapo'?"),
        ("beta", ["kl", "loss"], "in TRL 'beta' is our 'signal.kl.coef'"),
        ("clip", ["policy_loss.reinforce", "policy_loss.clipped"], "did you mean 'policy_loss.clipped'?"),
        ("zzzzzz", names(), ""),
    ],
)
def test_a_hint_names_what_is_meant(word: str, choices: list[str], hint: str) -> None:
    said = suggestion(word, choices)
    assert said.startswith(hint)
    assert bool(said) == bool(hint)
    assert nearest(word, choices) == (f" ({said})" if said else "")
    assert unknown_name("here", word, list(choices)).startswith(f"here: no entry is called {word!r}")


def test_letters_in_the_wrong_order_come_before_a_word_that_is_more_alike() -> None:
    assert closest("gpro", ["gspo", "grpo"]) == "grpo"
    assert closest("tsi", ["sis", "tis"]) == "tis"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("epsilon_high", "TRL: a setting, here signal.loss.band (band[1] = 1 + it"),
        ("num_generations", "TRL: a setting, here train.samples_per_prompt"),
        ("loss_agg_mode=seq-mean-token-mean", "verl: a setting, here signal.weighting (sequence_mean_token_mean)"),
        ("beta", "TRL: a setting, here signal.kl.coef"),
        ("samples_per_prompt", "train.samples_per_prompt  setting of a run file"),
        ("train.lr", "elsewhere: "),
        ("logp_old", "verl old_log_prob"),
        ("pg_clipfrac", "here */clipped_tokens"),
    ],
)
def test_explain_knows_words_of_ours_and_of_others(word: str, shown: str) -> None:
    done = CliRunner().invoke(app, ["explain", word], catch_exceptions=False)
    assert done.exit_code == 0
    assert shown in done.stdout


def test_the_lexicon_page_and_the_table_agree_on_log_probs() -> None:
    """Each name in the page's columns of log-probs is an alias of that framework."""
    page = (ROOT / "docs" / "lexicon.md").read_text().split("## Ratios")[0]
    head, _, *rows = [line for line in page.splitlines() if line.startswith("|")]
    frameworks = [cell.strip() for cell in head.strip("|").split("|")]
    for row in rows:
        cells = [cell.strip(" *`") for cell in row.strip("|").split("|")]
        for framework, theirs in zip(frameworks[2:], cells[2:], strict=True):
            if theirs and theirs != "–":
                assert cells[0] in {one.ours for one in meanings(theirs) if one.framework == framework}, (
                    framework,
                    theirs,
                )
