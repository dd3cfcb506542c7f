"""A baseline for every token of a group: the only place that compares sequences at the same step of time."""

import torch

from trimtab.signal.advantage import PROMISES, Credit
from trimtab.signal.catalogue import NonNegative, formula
from trimtab.signal.discount import discounted_sum
from trimtab.signal.layout import EpisodeFlag, EpisodeIndex, PerToken, Segments, SequenceIndex
from trimtab.signal.reduce import segment_sum, sequence_sum, to_tokens


@formula(
    source="Li et al. 2026, optimal token baseline, arXiv:2602.07078 (as verl has it)",
    scope="group",
    stage="advantage",
    promises=PROMISES,
    known_as=("OTB",),
)
def optimal_token_baseline(
    token_reward: PerToken,
    logp_old: PerToken,
    pi_squared: PerToken,
    votes: EpisodeFlag,
    episode_of_sequence: SequenceIndex,
    group_of_episode: EpisodeIndex,
    num_groups: int,
    segments: Segments,
    *,
    eps: NonNegative = 1e-8,
) -> Credit:
    """The reward to go minus a mean over the group at the same step, weighted by the size of the gradients so far.

    A_t = G_t - b_t,   b_t = sum_i W_it G_it / (sum_i W_it + eps),   i the voters of the group that have a step t
    G_t = sum_{s >= t} r_s,   W_t = sum_{s <= t} (1 - 2 p_s + pi_squared_s),   p_s = exp(logp_old_s)

    `pi_squared` is the sum of squared probabilities over the vocabulary, from the pass that gave logp_old: an extra
    field of the batch. Steps are trainable tokens, so tool output does not shift them.
    Where fewer than two voters have a step t, b_t = 0: nobody is compared with itself.
    """
    if not segments.num_tokens:
        return torch.empty_like(token_reward), torch.empty_like(token_reward)
    returns = discounted_sum(token_reward.double(), segments, 1.0)
    size = 1 - 2 * logp_old.double().exp() + pi_squared
    later = discounted_sum(size, segments, 1.0) - size
    so_far = to_tokens(sequence_sum(size, segments), segments) - later
    owner = segments.sequence_of_token
    step = torch.arange(segments.num_tokens, device=owner.device) - to_tokens(segments.first_token, segments)
    longest = int(segments.token_counts.max())
    episode = episode_of_sequence.index_select(0, owner)
    place, count = group_of_episode[episode] * longest + step, num_groups * longest
    voting = torch.where(votes[episode], so_far, 0.0)
    paid = torch.where(votes[episode], so_far * returns, 0.0)
    voters = segment_sum(votes[episode].to(torch.long), place, count)
    mean = segment_sum(paid, place, count) / (segment_sum(voting, place, count) + eps)
    baseline = torch.where(voters >= 2, mean, 0.0).index_select(0, place)
    return (returns - baseline).to(token_reward.dtype), returns.to(token_reward.dtype)
