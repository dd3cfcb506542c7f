"""The only place that says what a run can be told about the Ray cluster that it runs on."""

from typing import Annotated

from pydantic import Field, model_validator

from trimtab.config.number import Count, Natural, NonNegative, Rate
from trimtab.config.table import Table
from trimtab.errors import ConfigError

Resources = dict[str, NonNegative]
"""What Ray reserves for one process: CPU, GPU, or names that you gave your nodes (`ray start --resources`)."""


class ClusterSettings(Table):
    """Which cluster, what each part of a run asks for, and how often a lost part is started again."""

    address: str = "auto"
    """`auto`: RAY_ADDRESS or a cluster of this machine, else `local`; `local`: a cluster for this run; or host:port."""
    ranks: Annotated[Count, Field(le=1024)] = 1
    """Learner processes (FSDP2): the first is the process that was started, the others are placed by Ray."""
    sampler: Resources = {"CPU": 1}  # noqa: RUF012 - pydantic copies it
    """What one sampler asks for; {GPU = 1} for a GPU, {my_label = 1} for nodes with that resource."""
    rank: Resources = {"CPU": 1}  # noqa: RUF012
    """What one placed learner rank asks for."""
    reward: Resources = {"CPU": 1}  # noqa: RUF012
    """What one worker of your own reward asks for; there are `task.reward_workers` of them, for all samplers."""
    restarts: Natural = 3
    """How often lost samplers are started again in a run; as often the learner group, and each reward worker."""
    health_seconds: Rate = 60.0
    """A sampler or learner rank that has not answered for this long is ended and counts as lost."""
    object_store_mb: Annotated[Count, Field(ge=80)] = 256
    """Memory for messages of a `local` cluster, in MB; a version of the parameters must fit three times."""

    @model_validator(mode="after")
    def _address_is_plain(self) -> "ClusterSettings":
        if self.address in ("auto", "local"):
            return self
        host, colon, port = self.address.rpartition(":")
        if "://" in self.address or not colon or not host or not port.isdigit():
            raise ConfigError(
                f"train.cluster.address: {self.address!r} is neither auto, local nor HOST:PORT, so there is no cluster "
                "to connect to. Run `ray status` there to see its address; ray:// (a client far away) is not possible, "
                "because the learner must be a process of the cluster: use ray job submit."
            )
        return self
