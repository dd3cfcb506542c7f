"""`trimtab train --ranks N`: the same command once per rank, started and supervised by torchrun's own launcher."""

import logging
import os
import sys
import uuid
from typing import NoReturn


def in_rank() -> bool:
    """Whether this process is a rank already."""
    return "RANK" in os.environ


def is_first() -> bool:
    """Whether this process is the one that prints."""
    return os.environ.get("RANK", "0") == "0"


def start_ranks(count: int) -> NoReturn:
    """Run this command in `count` processes, and end as they end. If one fails, the others are ended too."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Each rank says in a sentence what went wrong; the launcher would add a page of its own.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # train.threads decides
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        _ = elastic_launch(config, entrypoint=sys.executable)("-m", "trimtab", *sys.argv[1:])
    except ChildFailedError as error:
        first = error.get_first_failure()[1]
        sys.exit(first.exitcode if first.exitcode > 0 else 128 - first.exitcode)
    except SignalException as error:
        sys.exit(128 + error.sigval)
    sys.exit(0)
