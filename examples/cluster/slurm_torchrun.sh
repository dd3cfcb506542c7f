#!/usr/bin/env bash
#SBATCH --job-name=trimtab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@180
# Learner ranks over the nodes of a Slurm job, without Ray:   sbatch examples/cluster/slurm_torchrun.sh
# DRY_RUN=1 bash examples/cluster/slurm_torchrun.sh prints the command and starts nothing.
#
# Rank 0 samples in processes of its own node, writes the run folder, and is the only one that needs to see it. The run
# file, a model folder and data files must be under the same name on every node.
# Slurm sends SIGTERM three minutes before the time is up: the step is finished, a checkpoint is written, the exit code
# is 143, and the job is queued again. Then it goes on.
set -euo pipefail

RUN_FILE=${RUN_FILE:-examples/async_int4.toml}
RUN_DIR=${RUN_DIR:-$PWD/runs/slurm-${SLURM_JOB_ID:-0}}
NODES=${SLURM_JOB_NUM_NODES:-2}
RANKS=${RANKS:-8}                                   # per node: one for each GPU
HEAD=${HEAD:-$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null | head -n 1 || true)}
HEAD=${HEAD:-127.0.0.1}

run=(trimtab train "$RUN_FILE" train.runtime=processes train.model.device=cuda --run-dir "$RUN_DIR")
if [ -f "$RUN_DIR/manifest.json" ]; then
    run=(trimtab train --resume "$RUN_DIR")
fi
launch=(
    srun --kill-on-bad-exit=1
    torchrun --nnodes "$NODES" --nproc-per-node "$RANKS"
    --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" --rdzv-id "${SLURM_JOB_ID:-0}" -m
)

if [ -n "${DRY_RUN:-}" ]; then
    printf 'would run: '
    printf '%q ' "${launch[@]}" "${run[@]}"
    echo
    exit
fi

"${launch[@]}" "${run[@]}" &
child=$!
trap 'kill -TERM "$child"' TERM                    # Slurm tells this script, and srun tells the ranks
code=0
wait "$child" || code=$?
while kill -0 "$child" 2>/dev/null; do wait "$child" || code=$?; done
if [ "$code" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
