"""The only place that says what a symptom means and what to do about it. Texts for people, one paragraph each."""

from trimtab.report.symptom import Symptom

_ALL = (
    Symptom(
        "accuracy-falls",
        "Held-out accuracy falls",
        "`eval/accuracy` rises, then falls and does not come back; the report says *No, it got worse*.",
        "The update pushes the policy away from right answers. This is the usual outcome of stale or quantised "
        "sampling without correction. Look which of `drift/*`, `ess_*` and `kept/*` left its early range *before* the "
        "accuracy did (report: *Since which step?*).",
        "Use `best/` instead of `model/`. Choose a recipe that corrects (`recipe=start_async` for stale rollouts, "
        "`recipe=start_engine_mismatch` for another engine), lower `staleness`, or halve `lr`. Run with `--twin` to "
        "compare with a control run without correction.",
    ),
    Symptom(
        "accuracy-stays",
        "Held-out accuracy stays where it was",
        "`eval/accuracy` moves less than its noise (about 4 points with 512 prompts); `rollout/reward_mean` is flat "
        "as well.",
        "There is little gradient, or none. Either no answer is right (`rollout/reward_mean` near 0), or all are "
        "(near 1), or right answers are rejected.",
        "If the reward is near 0, use more `warm_start_steps`, an easier `task.size` or more `samples_per_prompt`. "
        "Also read the transcripts, because a parser that never matches looks the same. If the reward is near 1, use "
        "harder problems. Otherwise look at `effective_batch/token_fraction`, `kept/token_fraction` and `lr`.",
    ),
    Symptom(
        "reward-without-held-out",
        "Reward rises, held-out accuracy does not",
        "`rollout/reward_mean` climbs while `eval/accuracy` stays or falls.",
        "The policy learns the reward and not the task. Possible causes: the reward can be cheated, training prompts "
        "are memorised, or sampled answers differ from greedy ones.",
        "Read the transcripts with the highest reward. Tighten `task.reward` (`exact`, `numeric`, `math_verify` "
        "instead of your own), use more or other problems, keep the policy near the reference (`signal.kl.coef` in a "
        "recipe with a KL), and stop early (`early_stop`).",
    ),
    Symptom(
        "drift-engine",
        "Sampler and trainer disagree at the same version",
        "`drift/engine_abs_mean` above 0.01 (rounding is below 1e-4, bf16 near 0.002), or "
        "`logratio_engine/token_abs_mean` where nothing is stale.",
        "The same parameters give different log-probs in the sampler. Possible causes: a coarse `engine.format`, "
        "another temperature or support (`engine.top_p` below 1 without `engine.record_support`), other kernels, or "
        "weights that never arrived. If the gap is large from the first token on, sampler and trainer compute "
        "different things. If it grows with the position, the cause is numerical (report: *Where in an answer does "
        "drift arise?*).",
        "Set `engine.format=fp32` once. If the gap disappears, the format was the cause, and "
        "`recipe=start_engine_mismatch` or `tis` corrects it. If it stays, compare temperature, top-p and token ids. "
        "A gap that jumps after a publication means stale weights.",
    ),
    Symptom(
        "drift-staleness",
        "Stale rollouts are far from the policy",
        "`drift/staleness_abs_mean` above 0.01 and growing, `staleness/mean` near the limit, drift that grows with "
        "version age.",
        "The policy moved between sampling and learning. Asynchronous training always does this. It is harmless "
        "while the recipe corrects it and the ESS is high.",
        "Use `recipe=start_async` or `decoupled_ppo`, or lower `staleness`, `updates_per_batch` or `lr` (drift grows "
        "with each of them). If drift grows at constant staleness, single updates are too large.",
    ),
    Symptom(
        "no-correction",
        "Drift that no part of the recipe corrects",
        "the warning *the sampler differs from the trainer by … and recipe … corrects for none of it*.",
        "The tokens come from a different policy than the update assumes, so the gradient belongs to a different "
        "objective. The error grows with the length of the answers.",
        'Choose a recipe with a correction, or add one: `[off_policy_correction] tis_ratio_type = "token"` for an '
        "engine, `recipe=start_async` for staleness.",
    ),
    Symptom(
        "ess-near-zero",
        "Effective sample size near 0",
        "`ess_total/sequence` (or `ess_engine/sequence`) below 0.3, or falling steadily.",
        "A few answers dominate the whole batch: their ratios are much larger than all others, so the gradient comes "
        "from a handful of answers. Products of ratios over long answers reach this state first, ratios of single "
        "tokens last.",
        "Lower `staleness` or `lr`. Truncate per token (`tis`), or reject by the geometric mean (`geometric_mask`), "
        "whose bounds do not depend on length. Larger batches (`prompts_per_step`) help only a "
        "little.",
    ),
    Symptom(
        "everything-rejected",
        "Most tokens, or all, are rejected",
        "`kept/token_fraction` below 0.5, `train/skipped_updates` above 0, the warning *rejects everything*.",
        "A keep stage has a band that is narrower than the drift. A band on the product over a sequence becomes "
        "tighter with length: a drift of 0.01 per token is a factor of 2.7 over 100 tokens. If rejection grows with "
        "the drift, only tokens that the policy already prefers are kept.",
        "Find the stage (report: *Which stage?*). Widen its band, or use one that does not depend on length "
        "(`keep.geometric_band`). If the drift itself is large, reduce it first: [engine](#drift-engine), "
        "[staleness](#drift-staleness).",
    ),
    Symptom(
        "nothing-rejected",
        "A correction is switched on and does nothing",
        "the warning *switched on, does nothing*; `*/alone` exactly 0 at every step; `*/rejected_tokens` 0.",
        "There are three possible causes. Sampler and trainer agree, so there is nothing to correct (fine). Or the "
        "stage reads a ratio that is always 1. Or its band is so wide that no ratio leaves it. If the share of "
        "rejected tokens falls while the drift rises, the band is on the wrong ratio.",
        "Compare with `drift/total_abs_mean`. Without drift, keep the stage or remove it. With drift, `trimtab explain "
        'run.toml` names the ratio that each stage reads. Use `ratio = "total"` where the old policy equals the '
        "current one, or a tighter band.",
    ),
    Symptom(
        "clip-never-acts",
        "The clip never acts",
        "`policy_loss.clipped/clipped_tokens` is 0 at every step.",
        "With one update per batch, the old policy *is* the current one: the ratio is 1 and cannot leave its band. "
        "This is correct. But then a clip against the old policy protects from nothing, staleness "
        "included.",
        "Nothing, if the data are fresh. If they are stale, clip or weight by the ratio to the sampler "
        "(`start_async`, `deepseek_v32`), or correct (`decoupled_ppo`).",
    ),
    Symptom(
        "loss-is-zero",
        "The loss value is near 0",
        "`train/loss` near 0 from the first step, although `eval/accuracy` rises.",
        "This is normal. The advantages of a group sum to 0, so the value of a policy loss is near 0 where the "
        "policies agree. Its gradient is not 0.",
        "Watch `eval/accuracy`, `rollout/reward_mean` and `train/grad_norm` instead. A gradient norm of 0 is a "
        "different problem: [groups without signal](#groups-without-signal).",
    ),
    Symptom(
        "entropy-collapse",
        "Entropy collapses",
        "`entropy/token_mean` falls below a tenth of its early value while `eval/accuracy` is not high.",
        "The policy writes the same answer each time, so the answers in a group no longer differ and learning ends. "
        "If the task is solved, low entropy is expected and not a fault.",
        "Raise the upper end of the clip (`signal.loss.band=[0.8,1.28]`, as DAPO does), lower `lr`, give "
        "`signal.entropy` a coefficient, sample with `temperature=1`, and check that the reward does not favour one "
        "fixed text.",
    ),
    Symptom(
        "gradient-spikes",
        "The gradient norm has spikes",
        "`train/grad_norm` more than ten times its median at single steps.",
        "A few tokens with large ratios, or a group whose standard deviation is almost 0, dominate a batch. "
        "`grad_clip` limits the size of the step but does not change its direction.",
        "Look at `ratio_*/token_max` and the ESS at the same steps. Bound the ratio (`tis`), lower `grad_clip` or "
        "`lr`, or replay the step: `trimtab replay RUN --step N` (with `dump_batches`).",
    ),
    Symptom(
        "non-finite",
        "Loss or gradient is not finite",
        "`train/nonfinite` above 0; the run may stop after `nonfinite_limit` such steps in a row.",
        "The forward pass overflowed, or a step was too large. Such a step is skipped: the parameters do not change, "
        "and its sequences are recorded.",
        "Lower `lr`; with `model.dtype=bfloat16` try float32; look at the recorded sequences. If it happens at the "
        "first step, look at the model folder, not at the recipe.",
    ),
    Symptom(
        "reward-errors",
        "Rewards fail or exceed their time limit",
        "`reward/error` or `reward/timeout` above 0.",
        "Your reward function raised, returned nan or a list of the wrong length, or took longer than "
        "`task.reward_seconds`. Such answers do not count as wrong: they do not train, and they do not enter "
        "the statistics of their group. But if mostly long or hard answers fail, the rest is not a fair sample.",
        "Read the messages in the transcripts. Repair the function, or raise `task.reward_seconds` or "
        "`task.reward_workers`. Return None to abstain on purpose.",
    ),
    Symptom(
        "answers-cut-off",
        "Answers are cut off",
        "`rollout/ended_fraction` below 0.9: answers reach `max_new_tokens` before they end.",
        "An answer that is cut off has no end token and mostly earns no reward. So long answers are punished even "
        "where the length was needed. Or the policy has forgotten how to end an answer.",
        "Raise `max_new_tokens`, or choose how such answers are treated with `signal.not_ended`. If the share falls "
        "during the run, answers become longer: look at transcripts and at the weighting (`signal.weighting`).",
    ),
    Symptom(
        "groups-without-signal",
        "Groups without signal",
        "`constant_groups/group_fraction` near 1, `effective_batch/token_fraction` near 0.",
        "All answers to a prompt earn the same reward, so there is nothing to compare. This is normal once a task is "
        "solved. At the start it means that the problems are too hard or too easy.",
        "Use more `samples_per_prompt`, problems of medium difficulty, or `dynamic_sampling=2`, which replaces such "
        "groups by fresh prompts as DAPO does.",
    ),
    Symptom(
        "sampler-starves-learner",
        "The learner waits for the sampler",
        "`time/wait_seconds` is a large share of the time, `buffer/groups` near 0, `staleness/mean` well below its "
        "limit.",
        "Sampling is slower than learning. More staleness does not help, because the buffer never fills.",
        "Use coarser weights if they are faster on your machine (`engine.format`), shorter answers "
        "(`max_new_tokens`), more `threads`, or more `updates_per_batch`, which uses each answer more than once.",
    ),
    Symptom(
        "learner-starves-sampler",
        "The sampler waits for the learner",
        "`buffer/groups` at its bound, `staleness/mean` at the limit, `time/wait_seconds` near 0.",
        "Learning is slower than sampling. The sampler waits so that no answer gets older than `staleness`. Nothing "
        "is lost.",
        "Use a larger `max_tokens_per_micro_batch` if memory allows, fewer `updates_per_batch`, or more `threads`. If "
        "the data are hardly stale anyway, `runtime=inline` is simpler and reproducible.",
    ),
    Symptom(
        "stale-weights",
        "New parameters reach the sampler late, or not at all",
        "`publish/lag_versions` (versions that the sampler is behind when its groups arrive) or `publish/lag_seconds` "
        "grows; an error that names two versions or checksums.",
        "The sampler's version changes only after a checksum of what it holds matched, so a late or failed "
        "publication shows here rather than as a mysterious drift.",
        "Check disk and memory of the sampler's process; fewer or larger updates. After the error, `trimtab train "
        "--resume RUN` continues from the last checkpoint.",
    ),
    Symptom(
        "support-refused",
        "Top-p or top-k is refused",
        "an error that importance sampling with `engine.top_p` below 1 or `engine.top_k` above 0 needs the support.",
        "The sampler draws from a few tokens and renormalises, while the trainer would score over all tokens. So the "
        "ratio is wrong for every token, by a factor that cannot be corrected later.",
        "Set `engine.record_support=true`, so that the trainer scores over the same tokens. Or sample from the whole "
        "distribution (`engine.top_p=1 engine.top_k=0`).",
    ),
    Symptom(
        "interrupted",
        "The run stopped before its end, or has no summary",
        "`summary.json` says `interrupted` and names a signal in `stopped_by`; or it is missing and curves end early.",
        "Ctrl-C (SIGINT), a scheduler or `docker stop` (SIGTERM) and a closed terminal (SIGHUP) all ask the run to "
        "stop. It finishes its step, writes a checkpoint and the summary, and ends with exit code 128 + signal: 130, "
        "143 or 129. A second signal ends it at once. Without a summary the process was killed or is still running; "
        "what was written is whole.",
        "`trimtab train --resume RUN` continues from the last checkpoint; `trimtab report RUN` makes the page again "
        "at any time. Give a scheduler enough time between its signal and its kill for one step and an evaluation.",
    ),
    Symptom(
        "resume-refused",
        "Resume is refused",
        "an error of `trimtab train --resume RUN` that names a file, a hash, a setting or code.",
        "Something is not as the run left it: a checkpoint is damaged or missing, a data or reward file changed, a "
        "setting changed that earlier steps depend on, or the run names code and comes from another machine.",
        "Put back what changed. Or say that you mean it: `--last-good` goes on from the newest checkpoint that is "
        "whole; `--accept-changes` goes on with data or code that changed, and the manifest says so; `--start-over` "
        "moves what is there aside and begins at step 0, where every checkpoint is lost; `--trust` imports the code "
        "that the run names. A new run from trained parameters is `model.path=RUN/model` in a new folder.",
    ),
    Symptom(
        "no-batch",
        "The sampler gives no batch",
        "the line *no batch from the sampler for … s*, again and again; in the end an error that it *seems to hang*.",
        "The sampler's process is slow, or stands still: a reward that takes long, a very long answer, a machine "
        "that swaps. The line says at which prompts and version it is. Ctrl-C and `max_minutes` work while it waits.",
        "Look at the load of the machine and at `task.reward_seconds`. `runtime=inline` shows in place where it "
        "stands. If one batch really takes that long, raise the limit: `TRIMTAB_SAMPLER_SECONDS=7200` in the "
        "environment. The run can be resumed from its last checkpoint.",
    ),
    Symptom(
        "learned-nothing",
        "The run learned nothing, or diverged",
        "`summary.json` says `learned_nothing` (exit code 3) or `diverged` (exit code 2); the first warning has the "
        "cause.",
        "`learned_nothing`: all steps were made and none had a gradient other than 0. No answer got a reward, or no "
        "group held two different ones, or all was rejected. `diverged`: the parameters are not finite, or their norm "
        "is a thousand times that of the start.",
        "Without rewards: mend the reward; its first message is in the warning. Without differences: more "
        "`warm_start_steps`, easier problems, more `samples_per_prompt`. Diverged: lower `lr`; `best/` holds the "
        "policy of the best evaluation.",
    ),
    Symptom(
        "numbers-differ",
        "Two runs with the same seed differ",
        "metrics of runs with equal settings and seed differ.",
        "With `runtime=processes`, timing decides which answers a batch holds. More than one of `threads` changes the "
        "order of sums. Other hardware or versions change the last bits. The manifest records all of these.",
        "`runtime=inline threads=1` on the same machine and versions is bit-reproducible. Otherwise compare several "
        "seeds: `trimtab study`.",
    ),
    Symptom(
        "metric-out-of-range",
        "A metric is outside its range",
        "a warning with *metric_truth*, *outside of its range* or *wrote to its input in place*.",
        "The live guard found an impossible number (a fraction above 1, a KL below 0, nan), or a tensor that changed "
        "during the step. This is a bug in your own formula or in ours. If it is in ours, please report it.",
        "`trimtab explain metric_truth` states the invariant. `trimtab check PACKAGE` searches for a minimal case.",
    ),
)

SYMPTOMS = {symptom.anchor: symptom for symptom in _ALL}
"""By anchor, in the order of the document."""
