"""Reference definitions of credit over turns, as loops over plain numbers."""

from collections.abc import Callable

from trimtab.sentinel.binding.plain import Answer, Plain, clamp, stdev


def _turns(p: Plain, row: list[int]) -> list[list[int]]:
    """The tokens of a sequence, turn by turn."""
    turns: list[list[int]] = []
    for t in row:
        if turns and p.turn[turns[-1][-1]] == p.turn[t]:
            turns[-1].append(t)
        else:
            turns.append([t])
    return turns


def turn_gae(p: Plain, gamma: float, lam: float) -> Answer:
    out, returns = [0.0] * len(p.row_of), [0.0] * len(p.row_of)
    for i, row in enumerate(p.rows):
        after, running = (0.0 if p.ended[i] else p.value_after[i]), 0.0
        for turn in reversed(_turns(p, row)):
            value = p.value_old[turn[0]]
            running = sum(p.token_reward[t] for t in turn) + gamma * after - value + gamma * lam * running
            after = value
            for t in turn:
                out[t], returns[t] = running, running + value
    return out, {"returns": returns}


def _to_go(p: Plain, gamma: float) -> tuple[list[float], list[tuple[int, list[int]]]]:
    """The return of each token's turn, and every turn with its sequence."""
    returns = [0.0] * len(p.row_of)
    found: list[tuple[int, list[int]]] = []
    for i, row in enumerate(p.rows):
        later = 0.0
        for turn in reversed(_turns(p, row)):
            later = sum(p.token_reward[t] for t in turn) + gamma * later
            found.append((i, turn))
            for t in turn:
                returns[t] = later
    return returns, found


def _against(value: float, mates: list[float], *, divided: bool, eps: float) -> float:
    """A value held within those of its mates who vote, minus their mean, over their spread; 0 with fewer than two."""
    if len(mates) < 2:
        return 0.0
    spread = stdev(mates) + eps if divided and len(set(mates)) > 1 else 1.0
    return (clamp(value, (min(mates), max(mates))) - sum(mates) / len(mates)) / spread


def turn_reward_to_go(p: Plain, gamma: float, compared: str, eps: float) -> Answer:
    returns, found = _to_go(p, gamma)
    if compared == "none":
        return returns, {"returns": returns}
    out = [0.0] * len(returns)
    for i, turn in found:
        mates = [returns[other[0]] for j, other in found if p.votes[j] and p.group[j] == p.group[i]]
        for t in turn:
            out[t] = _against(returns[t], mates, divided=True, eps=eps)
    return out, {"returns": returns}


def turns_by_state(p: Plain, gamma: float, coef: float, std: str, eps: float) -> Answer:
    returns, found = _to_go(p, gamma)
    # Here, every episode is one sequence: its outcome counts once, wherever it stands.
    rewards = [sum(p.token_reward[t] for t in row) for row in p.rows]
    out = [0.0] * len(returns)
    for i, turn in found:
        mates = [j for j, votes in enumerate(p.votes) if votes and p.group[j] == p.group[i]]
        alike = [
            returns[other[0]] for j, other in found
            if j in mates and p.state[other[0]] == p.state[turn[0]]
        ]  # fmt: skip
        episode = _against(rewards[i], [rewards[j] for j in mates], divided=std == "group", eps=eps)
        step = _against(returns[turn[0]], alike, divided=std == "group", eps=eps)
        for t in turn:
            out[t] = episode + coef * step
    return out, {"returns": returns}


TURNS: dict[str, Callable[..., Answer]] = {
    "advantage.turn_gae": turn_gae, "advantage.turn_reward_to_go": turn_reward_to_go,
    "advantage.turns_by_state": turns_by_state,
}  # fmt: skip
