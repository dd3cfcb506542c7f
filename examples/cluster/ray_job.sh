#!/usr/bin/env bash
# A run on a Ray cluster that is already there, as a job of it:   bash examples/cluster/ray_job.sh
# DRY_RUN=1 prints the command and submits nothing.
#
# Before: the same trimtab[cluster] on every node, and `ray start` with a token (ray get-auth-token --generate; copy
# ~/.ray/auth_token to every node). Jobs go through the dashboard, so the head is started with it, on loopback:
#   head:   ray start --head --node-ip-address 10.0.0.1 --include-dashboard true --dashboard-host 127.0.0.1
#   others: ray start --address 10.0.0.1:6379 --resources '{"sampler": 8}'
#   here:   ssh -L 8265:127.0.0.1:8265 head
# Whoever reaches these ports and has the token runs code on every node: keep them inside your own network.
set -euo pipefail

RUN_FILE=${RUN_FILE:-examples/async_int4.toml}
RUN_DIR=${RUN_DIR:-$HOME/runs/from_ray_job}   # on the node of the learner, whose disk outlives the job
SAMPLERS=${SAMPLERS:-4}
export RAY_API_SERVER_ADDRESS=${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}

# The learner is the job itself: --entrypoint-num-gpus 1 puts it on a node with a GPU.
submit=(ray job submit --working-dir . --entrypoint-num-cpus 1 --)
run=(trimtab train "$RUN_FILE" train.engine.processes="$SAMPLERS" train.cluster.sampler.sampler=1 --cluster auto --run-dir "$RUN_DIR")
if [ -n "${RESUME:-}" ]; then   # RESUME=1 after `ray job stop`, a lost node or a kill: goes on from the last checkpoint
    run=(trimtab train --resume "$RUN_DIR" --cluster auto)
fi

if [ -n "${DRY_RUN:-}" ]; then
    printf 'would run: '
    printf '%q ' "${submit[@]}" "${run[@]}"
    echo
    exit
fi
exec "${submit[@]}" "${run[@]}"
