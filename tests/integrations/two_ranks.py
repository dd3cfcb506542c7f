"""One rank of a TRL run over two processes, watched, with every batch dumped: torchrun … two_ranks.py FOLDER."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.integrations.trl_run import rollout, trainer

from trimtab.integrations import trl

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    made = trainer(
        folder, steps=4, num_iterations=2, gradient_accumulation_steps=2, per_device_train_batch_size=8,
        rollout_func=rollout(noise=0.02), ddp_backend="gloo",
    )  # fmt: skip
    watch = trl.attach(made, folder / "watch", dump_every=1, dump_ids=True)
    made.train()
    assert watch.failures == [], watch.failures
