"""The only place that says what a symptom means and what to do about it. Texts for people, one paragraph each."""

from trimtab.report.symptom import Symptom

_ALL = (
    Symptom(
        "accuracy-falls",
        "Held-out accuracy falls",
        "`eval/accuracy` rises, then falls and does not come back; the report says *No, it got worse*.",
        "The update pushes away from what is right. With stale or quantised sampling and no correction this is the "
        "usual end: look at which of `drift/*`, `ess_*` and `kept/*` left its early range *before* the accuracy did "
        "(report: *Since which step?*).",
        "Take `best/` rather than `model/`. Choose a recipe that corrects (`recipe=start_async` for stale rollouts, "
        "`recipe=start_engine_mismatch` for another engine), lower `staleness`, or halve `lr`; run with `--twin` to "
        "see what the correction does.",
    ),
    Symptom(
        "accuracy-stays",
        "Held-out accuracy stays where it was",
        "`eval/accuracy` moves less than its noise (about 4 points with 512 prompts); `rollout/reward_mean` is flat "
        "as well.",
        "Little gradient, or none. Either no answer is ever right (`rollout/reward_mean` near 0), or all are (near "
        "1), or what is right is rejected.",
        "Reward near 0: more `warm_start_steps`, an easier `task.size`, more `samples_per_prompt`; read the "
        "transcripts, for a parser that never matches looks the same. Reward near 1: harder problems. Otherwise "
        "look at `effective_batch/token_fraction`, `kept/token_fraction` and `lr`.",
    ),
    Symptom(
        "reward-without-held-out",
        "Reward rises, held-out accuracy does not",
        "`rollout/reward_mean` climbs while `eval/accuracy` stays or falls.",
        "The policy learns the reward, not the task: a reward that can be cheated, training prompts learned by "
        "heart, or sampled and greedy answers that differ.",
        "Read the transcripts with the highest reward. Tighten `task.reward` (`exact`, `numeric`, `math_verify` "
        "instead of your own), use more or other problems, stay near the reference (`signal.kl.coef` in a recipe "
        "with a KL), and stop early (`early_stop`).",
    ),
    Symptom(
        "drift-engine",
        "Sampler and trainer disagree at the same version",
        "`drift/engine_abs_mean` above 0.01 (rounding is below 1e-4, bf16 near 0.002), or "
        "`logratio_engine/token_abs_mean` where nothing is stale.",
        "The same parameters give other log-probs in the sampler: a coarse `engine.format`, another temperature or "
        "support (`engine.top_p` below 1 without `engine.record_support`), other kernels, or weights that never "
        "arrived. A gap that is large from the first token on points at the semantics, one that grows with the "
        "position at numerics (report: *Drift by position*).",
        "Set `engine.format=fp32` once: if the gap goes, it was the format, and `recipe=start_engine_mismatch` or "
        "`tis` corrects it. If it stays, compare temperature, top-p and token ids; a gap that jumps after a "
        "publication means stale weights.",
    ),
    Symptom(
        "drift-staleness",
        "Stale rollouts are far from the policy",
        "`drift/staleness_abs_mean` above 0.01 and growing, `staleness/mean` near the limit, drift that grows with "
        "version age.",
        "Between sampling and learning the policy has moved. That is the price of asynchrony; it is harmless while "
        "a correction holds and the ESS is high.",
        "Use `recipe=start_async`, or `decoupled_ppo`; lower `staleness`, `updates_per_batch` or `lr` (drift grows "
        "with each of them). A growing drift at constant staleness means that single updates are too large.",
    ),
    Symptom(
        "no-correction",
        "Drift that no part of the recipe corrects",
        "the warning *the sampler differs from the trainer by … and recipe … corrects for none of it*.",
        "Tokens come from another policy than the update believes, so the gradient is that of another objective, "
        "and the more so the longer the answers.",
        'Choose a recipe with a correction, or add one: `[off_policy_correction] tis_ratio_type = "token"` for an '
        "engine, `recipe=start_async` for staleness.",
    ),
    Symptom(
        "ess-near-zero",
        "Effective sample size near 0",
        "`ess_total/sequence` (or `ess_engine/sequence`) below 0.3, or falling steadily.",
        "A few answers carry the whole batch: their ratios dwarf all others, so the gradient is that of a handful "
        "of answers. Products over long answers get there first; ratios of tokens last.",
        "Lower `staleness` or `lr`; truncate at the level of tokens (`tis`) or reject by the geometric mean "
        "(`geometric_mask`), whose bounds do not depend on length; larger batches (`prompts_per_step`) help only a "
        "little.",
    ),
    Symptom(
        "everything-rejected",
        "Most tokens, or all, are rejected",
        "`kept/token_fraction` below 0.5, `train/skipped_updates` above 0, the warning *rejects everything*.",
        "A keep stage has a band narrower than the drift. Bands on a sequence's product shrink with length: a drift "
        "of 0.01 per token is a factor of 2.7 over 100 tokens. A rejection that grows with the drift selects what the "
        "policy already does.",
        "See which stage it is (report: *Which stage?*), then widen its band or take one that does not depend on "
        "length (`keep.geometric_band`). If the drift itself is large, mend that first: [engine](#drift-engine), "
        "[staleness](#drift-staleness).",
    ),
    Symptom(
        "nothing-rejected",
        "A correction is switched on and does nothing",
        "the warning *switched on, does nothing*; `*/alone` exactly 0 at every step; `*/rejected_tokens` 0.",
        "Either sampler and trainer agree, and there is nothing to correct (fine), or the stage looks at a ratio "
        "that is always 1, or its band is so wide that nothing meets it. A mask rate that falls while the drift "
        "rises means that the band watches the wrong thing.",
        "Compare with `drift/total_abs_mean`. No drift: leave the stage, or drop it. Drift: `trimtab explain "
        'run.toml` names the ratio each stage reads; take `ratio = "total"` where the old policy is the current '
        "one, or a tighter band.",
    ),
    Symptom(
        "clip-never-acts",
        "The clip never acts",
        "`policy_loss.clipped/clipped_tokens` is 0 at every step.",
        "With one update per batch, the old policy *is* the current one: the ratio is 1 and cannot leave its band. "
        "That is right, not broken; but then a clip against the old policy protects from nothing, staleness "
        "included.",
        "Nothing, if the data are fresh. If they are stale, clip or weigh against the rollout (`start_async`, "
        "`deepseek_v32`), or correct (`decoupled_ppo`).",
    ),
    Symptom(
        "loss-is-zero",
        "The loss is 0, or means nothing",
        "`train/loss` near 0 from the first step, although `eval/accuracy` rises.",
        "Advantages of a group sum to 0, so the value of a policy-gradient loss is near 0 where the policies agree; "
        "its gradient is not.",
        "Watch `eval/accuracy`, `rollout/reward_mean` and `train/grad_norm`. A gradient norm of 0 is another "
        "matter: [groups without signal](#groups-without-signal).",
    ),
    Symptom(
        "entropy-collapse",
        "Entropy collapses",
        "`entropy/token_mean` falls below a tenth of its early value while `eval/accuracy` is not high.",
        "The policy writes the same answer each time, so groups no longer differ and learning ends. Where the task "
        "is solved, low entropy is the goal, not a fault.",
        "Raise the upper end of the clip (`signal.loss.band=[0.8,1.28]`, as DAPO does), lower `lr`, give "
        "`signal.entropy` a coefficient, sample with `temperature=1`, and check that the reward does not favour one "
        "fixed text.",
    ),
    Symptom(
        "gradient-spikes",
        "The gradient norm has spikes",
        "`train/grad_norm` more than ten times its median at single steps.",
        "A few tokens with large ratios, or a group whose standard deviation is almost 0, dominate a batch. "
        "`grad_clip` bounds the step, not its direction.",
        "Look at `ratio_*/token_max` and the ESS at the same steps. Bound the ratio (`tis`), lower `grad_clip` or "
        "`lr`, or replay the step: `trimtab replay RUN --step N` (with `dump_batches`).",
    ),
    Symptom(
        "non-finite",
        "Loss or gradient is not finite",
        "`train/nonfinite` above 0; the run may stop after `nonfinite_limit` such steps in a row.",
        "An overflow in the forward pass or a step that was too large. Such a step is skipped and the parameters "
        "stay as they were; the sequences are recorded.",
        "Lower `lr`; with `model.dtype=bfloat16` try float32; look at the recorded sequences. If it happens at the "
        "first step, look at the model folder, not at the recipe.",
    ),
    Symptom(
        "reward-errors",
        "Rewards fail or run out of time",
        "`reward/error` or `reward/timeout` above 0.",
        "Your reward function raised, returned nan or a list of the wrong length, or took longer than "
        "`task.reward_seconds`. Such answers do not count as wrong: they neither train nor vote. But if it is "
        "always the long or the hard ones that fail, what is left is not a fair sample.",
        "Read the messages in the transcripts. Mend the function, raise `task.reward_seconds` or "
        "`task.reward_workers`; return None to abstain on purpose.",
    ),
    Symptom(
        "answers-cut-off",
        "Answers are cut off",
        "`rollout/ended_fraction` below 0.9: answers reach `max_new_tokens` before they end.",
        "What was cut has no end token and mostly no reward, so length is punished, whatever it was needed for; or "
        "the policy has forgotten how to end.",
        "Raise `max_new_tokens`, or say what becomes of such answers with `signal.not_ended`. If the share falls "
        "during the run, the policy grows longer: look at transcripts and at the weighting (`signal.weighting`).",
    ),
    Symptom(
        "groups-without-signal",
        "Groups without signal",
        "`constant_groups/group_fraction` near 1, `effective_batch/token_fraction` near 0.",
        "All answers to a prompt earn the same, so there is nothing to compare. Near the end of a solved task that "
        "is natural; at the start, problems are too hard or too easy.",
        "More `samples_per_prompt`, problems of middle difficulty, `dynamic_sampling=2` (fresh prompts replace such "
        "groups, as DAPO does).",
    ),
    Symptom(
        "sampler-starves-learner",
        "The learner waits for the sampler",
        "`time/wait_seconds` is a large share of the time, `buffer/groups` near 0, `staleness/mean` well below its "
        "limit.",
        "Sampling is slower than learning; more staleness does not help, for the buffer never fills.",
        "Coarser weights if they are faster here (`engine.format`), shorter answers (`max_new_tokens`), `threads`, "
        "or more `updates_per_batch`, which use each answer more than once.",
    ),
    Symptom(
        "learner-starves-sampler",
        "The sampler waits for the learner",
        "`buffer/groups` at its bound, `staleness/mean` at the limit, `time/wait_seconds` near 0.",
        "Learning is slower than sampling; admission holds the sampler back so that nothing gets older than "
        "`staleness`. Nothing is lost.",
        "Larger `max_tokens_per_micro_batch` if memory allows, fewer `updates_per_batch`, `threads`. If the data "
        "are hardly stale anyway, `runtime=inline` is simpler and reproducible.",
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
        "The sampler draws from few tokens and renormalises, the trainer would score over all: the ratio is wrong "
        "for every token, by a factor nobody can correct later.",
        "`engine.record_support=true` scores the trainer over the same tokens; or sample from the whole "
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
        "`summary.json` says `learned_nothing` (exit code 3) or `diverged` (exit code 1); the first warning has the "
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
        "metrics of equal settings and seed drift apart.",
        "`runtime=processes` decides by the clock which answers a batch holds; more than one of `threads` changes "
        "the order of sums; other hardware or versions change the last bits. The manifest holds all of these.",
        "`runtime=inline threads=1` on the same machine and versions is bit-reproducible. Otherwise compare several "
        "seeds: `trimtab study`.",
    ),
    Symptom(
        "metric-out-of-range",
        "A metric is outside of its range",
        "a warning with *metric_truth*, *outside of its range* or *wrote to its input in place*.",
        "The live guard found a number that cannot be: a fraction above 1, a KL below 0, nan, or a tensor that "
        "changed under the trainer. In your own formula that is a bug; in ours too: please report it.",
        "`trimtab explain metric_truth` says what is promised, `trimtab check PACKAGE` looks for a minimal case.",
    ),
)

SYMPTOMS = {symptom.anchor: symptom for symptom in _ALL}
"""By anchor, in the order of the document."""
