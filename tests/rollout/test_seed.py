from trimtab.rollout.seed import stream_seed


def test_streams_differ_in_every_part_and_fit_torch() -> None:
    seeds = {stream_seed(seed, use, step) for seed in range(4) for use in ("prompts", "rollout") for step in range(50)}
    assert len(seeds) == 4 * 2 * 50
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_number_and_its_text_name_different_streams() -> None:
    assert stream_seed(1, "2") != stream_seed(1, 2)
