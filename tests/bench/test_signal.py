"""The table of `bench.signal`: ratios, peaks and counts stand where the head says."""

import pytest
import torch
from bench import memory, stages
from bench.counting import counted
from bench.frameworks import acted, load_all
from bench.signal import HEAD, Row, table
from bench.timing import Times, interleaved
from bench.workload import WORKLOADS


def rows() -> list[Row]:
    seen = counted(lambda: torch.ones(2).tolist())
    return [
        Row("Trimtab", Times(2.0, 3.0), seen, 1.5),
        Row("peer (compiled)", Times(4.0, 5.0), seen, None),
        Row("peer", Times(1.0, 1.0), seen, 12.0),
    ]


def test_a_ratio_is_our_least_time_over_theirs() -> None:
    told = table("stage", rows(), ratios=True)
    assert told[1:] == [
        "| Trimtab | 2.00 | 3.00 |  | 1.5 | 1 | 1 | 1 |",
        "| peer (compiled) | 4.00 | 5.00 | 0.50 |  | – | – | 1 |",
        "| peer | 1.00 | 1.00 | 2.00 | 12.0 | 1 | 1 | 1 |",
    ]
    assert {line.count("|") for line in [*HEAD, *told]} == {9}


def test_on_a_busy_machine_there_are_no_ratios() -> None:
    assert all(line.split("|")[4].strip() == "" for line in table("stage", rows(), ratios=False))


def test_every_call_is_timed_in_every_round_after_one_that_is_not() -> None:
    order: list[str] = []
    found = interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        rounds=3,
        warm=0,
        least_seconds=0,
        whole_seconds=0,
    )
    assert order == ["a", "b"] + ["a", "a", "b", "b"] * 3
    assert all(one.least <= one.middle for one in found.values())


def test_short_calls_get_more_rounds() -> None:
    order: list[str] = []
    _ = interleaved({"a": lambda: order.append("a")}, rounds=1, warm=0, least_seconds=0, whole_seconds=0.05)
    assert len(order) > 10


def test_what_was_not_compiled_is_not_timed_as_compiled() -> None:
    with pytest.raises(RuntimeError, match="did not act"):
        _ = acted(lambda: torch.ones(1) + 1)


def test_the_mark_of_memory_follows_what_is_held() -> None:
    before = memory.reset()
    del before
    start = memory._status("VmRSS")
    held = torch.ones(32 * 2**18)
    assert 30 < memory._status("VmHWM") - start < 48
    del held


@pytest.mark.parametrize("stage", ["loss", "correction", "group", "gae"])
def test_our_side_of_a_stage_runs_without_any_peer(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_SLIME", raising=False)
    makers = getattr(stages, stage)(WORKLOADS["tiny"]())
    assert [name for name in makers if name.startswith("slime")] == []
    _ = makers["Trimtab"]()()


def test_a_peer_that_cannot_be_loaded_is_left_out_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> int:
        raise RuntimeError("no compiler")

    assert load_all({"Trimtab": lambda: 1, "peer": broken}) == {"Trimtab": 1}
    assert "peer is left out: RuntimeError: no compiler" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="no compiler"):
        _ = load_all({"Trimtab": broken})


def test_a_table_is_put_between_the_marks_of_the_page() -> None:
    from bench.signal import MARK, PAGE

    assert PAGE.read_text(encoding="utf-8").count(MARK) == 2
