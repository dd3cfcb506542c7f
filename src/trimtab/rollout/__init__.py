"""From a task to a batch: prompts, the engine that answers them, rewards, and the door into the signal.

This package does not know the policy's optimiser, the loss, or the run folder.
"""

from trimtab.rollout.buffer import Buffer
from trimtab.rollout.collect import Collector
from trimtab.rollout.engine import Engine, Greedy, Request, Sample, Sampling
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather, join
from trimtab.rollout.reward import Attempt, Scorer, Verdict, open_scorer
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.rows import Rows
from trimtab.rollout.task import Environment, Problem, Split, Task, Turn, open_task, split_of

__all__ = [
    "Attempt",
    "Buffer",
    "Collector",
    "Engine",
    "Environment",
    "Episode",
    "Greedy",
    "Problem",
    "Request",
    "Rollouts",
    "Rows",
    "Sample",
    "Sampling",
    "Scorer",
    "Split",
    "Task",
    "Turn",
    "Verdict",
    "gather",
    "join",
    "open_scorer",
    "open_task",
    "split_of",
]
