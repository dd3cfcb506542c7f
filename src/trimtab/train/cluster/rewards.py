"""The only place that judges answers on other nodes: reward workers that Ray places, and starts again when they die.

A worker holds one guarded process (`rollout/reward_pool.py`), so that a function that hangs or crashes costs one
answer. If a worker itself is lost, Ray starts it anew and asks it again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.errors import EngineError
from trimtab.rollout.reward import Columns, Verdict
from trimtab.rollout.wire import pack, unpack
from trimtab.train.cluster.parcel import write_parcel
from trimtab.train.cluster.role import Scratch, Words, here
from trimtab.train.cluster.session import import_ray


class RewardRole:
    """One worker on a node."""

    def __init__(self, opening: bytes) -> None:
        from trimtab.rollout.reward_pool import RewardPool

        head, files = unpack(opening)
        self._scratch: Scratch = Scratch()
        self._words: Words = Words(self._scratch.folder)
        write_parcel(files, self._scratch.folder)
        target = str(head["target"])
        if head["file"]:
            target = f"{self._scratch.folder / str(head['file'])}:{target.rpartition(':')[2]}"
        names = tuple(str(name) for name in head["names"])
        self._pool: RewardPool = RewardPool(target, 1, float(head["seconds"]), names, head["options"])

    def judge(self, message: bytes) -> bytes:
        """Verdicts for one call's answers."""
        head, _ = unpack(message)
        verdicts = self._pool.judge(head["columns"], int(head["count"]))
        return pack({"verdicts": [[one.status, one.reward, one.message] for one in verdicts]})

    def look(self) -> dict[str, str]:
        """Where it is, and what was printed since the last call."""
        return {**here(), "words": self._words.fresh()}

    def close(self) -> None:
        self._pool.close()
        self._scratch.close()


@dataclass(frozen=True)
class Distributed:
    """`Workers` of a scorer that are elsewhere. A call is spread over all of them."""

    handles: Sequence[Any]

    def judge(self, columns: Columns, count: int) -> list[Verdict]:
        ray = import_ray()
        size = max(1, -(-count // len(self.handles)))
        parts = [slice(first, min(first + size, count)) for first in range(0, count, size)]
        asked = [handle.judge.remote(_call(columns, part)) for handle, part in zip(self.handles, parts, strict=False)]
        try:
            answers: list[bytes] = ray.get(asked)
        except ray.exceptions.RayError as error:
            raise EngineError(
                f"cluster: the reward workers are lost ({_first_line(error)}), so no answer can be judged. The run can "
                "be resumed from its last checkpoint; logs/reward_0.log of the run folder has their last words."
            ) from error
        return [
            Verdict(status, float(reward), message)
            for answer in answers
            for status, reward, message in unpack(answer)[0]["verdicts"]
        ]

    def close(self) -> None:
        """They belong to the run, not to one sampler."""


def _call(columns: Columns, part: slice) -> bytes:
    cut = {name: list(values[part]) for name, values in columns.items()}
    plain: Mapping[str, Any] = json.loads(json.dumps(cut, default=str))
    return pack({"columns": plain, "count": part.stop - part.start})


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
