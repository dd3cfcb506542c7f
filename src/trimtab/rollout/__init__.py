"""From a task to a batch: prompts, the engine that answers them, rewards, and the door into the signal.

This package does not know the policy's optimiser, the loss, or the run folder.
"""

from trimtab.rollout.assemble import Assembled, Episode, Rows, assemble
from trimtab.rollout.engine import Engine, Greedy, Sample, Sampling
from trimtab.rollout.task import Problem, Reverse, Split, Task, draw, split_of, task

__all__ = [
    "Assembled",
    "Engine",
    "Episode",
    "Greedy",
    "Problem",
    "Reverse",
    "Rows",
    "Sample",
    "Sampling",
    "Split",
    "Task",
    "assemble",
    "draw",
    "split_of",
    "task",
]
