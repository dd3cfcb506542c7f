"""What a run asks of a cluster, and what of it would fit: settings and descriptions of nodes in, sentences out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings

PACKAGED = ("exact", "numeric")


@dataclass(frozen=True)
class Role:
    """Processes of one kind."""

    name: str
    count: int
    resources: Mapping[str, float]
    what: str


def roles(settings: "TrainSettings") -> list[Role]:
    """Every kind of process that Ray would place for a run."""
    cluster, task = settings.cluster, settings.task
    found = [Role("rank", cluster.ranks - 1, cluster.rank, "learner ranks beside this process, which is rank 0")]
    if not settings.engine.servers:
        engine = "a vLLM server each" if settings.engine.name == "vllm" else f"{settings.engine.name} engine"
        found.append(Role("sampler", settings.engine.processes, cluster.sampler, f"samplers, {engine}"))
    if needs_workers(settings):
        found.append(Role("reward", task.reward_workers, cluster.reward, f"reward workers for {task.reward}"))
    return [role for role in found if role.count]


def needs_workers(settings: "TrainSettings") -> bool:
    """Whether the reward is judged in processes of its own."""
    task = settings.task
    if task.reward == "task":
        return task.name.startswith("reasoning_gym.")
    return task.reward not in PACKAGED


def wanted_resources(settings: "TrainSettings") -> dict[str, float]:
    """The sum over all roles: what a cluster of the run's own is started with."""
    total: dict[str, float] = {}
    for role in roles(settings):
        for name, count in role.resources.items():
            total[name] = total.get(name, 0.0) + count * role.count
    return total


def fit(role: Role, nodes: Sequence[Mapping[str, float]]) -> list[int]:
    """How many processes of a role each node has room for, all other roles left out.

    >>> fit(Role("sampler", 2, {"CPU": 1, "slot": 1}, ""), [{"CPU": 4}, {"CPU": 2, "slot": 2}])
    [0, 2]
    """
    asked = {name: count for name, count in role.resources.items() if count}
    return [
        min((int(node.get(name, 0) // count) for name, count in asked.items()), default=role.count) for node in nodes
    ]


def placement_lines(settings: "TrainSettings", nodes: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """What would be placed where. `nodes`: name and resources of each; None for a cluster of the run's own."""
    lines = ["rank 0: this process; it writes the run folder"]
    for role in roles(settings):
        asks = ", ".join(f"{name} {count:g}" for name, count in role.resources.items()) or "nothing"
        line = f"{role.count} x {role.what}; each asks for {asks}"
        if nodes is not None:
            rooms = fit(role, [node["resources"] for node in nodes])
            named = ", ".join(
                f"{node['name']} has room for {room}" for node, room in zip(nodes, rooms, strict=True) if room
            )
            line += f": {named or 'no node has room, so they wait until one is added'}"
        lines.append(line)
    return lines
