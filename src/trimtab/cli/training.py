"""The commands around a training run, and what they say about themselves."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.app import app
from trimtab.errors import ConfigError

PANEL = "Training"
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted overrides: train.steps=50 recipe=dapo", metavar="KEY=VALUE")
]

Trust = Annotated[
    bool, typer.Option("--trust", help="Import code of its own that the run's config names (reward, task, formula).")
]


Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="auto|local|HOST:PORT",
        help="Run on Ray. auto: RAY_ADDRESS or a cluster of this machine, else local; local: one for this command.",
    ),
]


@app.command(rich_help_panel=PANEL)
def train(
    run_file: Annotated[
        Path | None, typer.Argument(help="A TOML run file (trimtab init writes one); without one, the defaults.")
    ] = None,
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for the run; new or empty. Default: runs/<UTC time>-seed<N>.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Names every random stream of the run.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with this run from its last checkpoint.")
    ] = None,
    last_good: Annotated[
        bool, typer.Option("--last-good", help="With --resume: if the last checkpoint is damaged, take an older one.")
    ] = False,
    accept_changes: Annotated[
        bool,
        typer.Option("--accept-changes", help="With --resume: go on although a data or reward file changed; recorded."),
    ] = False,
    start_over: Annotated[
        bool,
        typer.Option("--start-over", help="With --resume: no checkpoint is left; move the logs aside, begin again."),
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="With --resume: import code that a run from another machine or user names."),
    ] = False,
    twin: Annotated[
        bool,
        typer.Option(
            "--twin", help="Then train a control run: the same run without correction. The report shows both."
        ),
    ] = False,
    max_minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after this long, with a checkpoint to go on from.")
    ] = None,
    ranks: Annotated[
        int, typer.Option(min=1, help="Train in this many processes of this machine (FSDP2), started by torchrun.")
    ] = 1,
    cluster: Cluster = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Resolve and explain, estimate memory and time, say what goes where; train nothing."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the result only.")] = False,
) -> None:
    """Train a language model by RL here or on a Ray cluster, and write metrics, checkpoints, a summary, a report.

    With no arguments: a tiny transformer, warm-started by a few supervised steps, learns to sort five digits. With
    train.staleness and train.engine.format its sampler falls behind and is quantised, and the recipe corrects for both.
    Everything is in the run folder; open report.html to look at it. Ctrl-C, SIGTERM and SIGHUP finish the step, write a
    checkpoint and say how to go on (exit code 128 + signal); a second one ends at once.

    With --cluster, Ray places samplers (train.engine.processes), workers of your own reward, and all ranks but
    the first (--ranks) on its nodes; this process is the first rank and owns the run folder. docs/cluster.md says what
    is lost when which process dies.

    Examples: trimtab train · trimtab train run.toml train.steps=60 --seed 1 · trimtab train recipe=dapo --dry-run ·
    trimtab train --resume runs/… · trimtab train run.toml --ranks 2 ·
    trimtab train run.toml --cluster auto train.engine.processes=4 ·
    torchrun --nproc-per-node 8 -m trimtab train run.toml ·
    trimtab train train.model=path/to/hf_folder train.task.name=file train.task.file=problems.jsonl
    """
    from trimtab.cli.train import Asked, run_training

    given = list(overrides or [])
    if run_file is not None and "=" in str(run_file):
        given, run_file = [str(run_file), *given], None
    run_training(
        Asked(
            run_file, given, run_dir, seed, resume, last_good, accept_changes, start_over, trust, twin, max_minutes,
            dry_run, quiet, ranks, cluster,
        )
    )  # fmt: skip


@app.command(rich_help_panel=PANEL)
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it; nothing is overwritten.")] = Path("run.toml"),
    recipe: Annotated[str, typer.Option(help="The recipe to begin with; trimtab catalog lists them.")] = "",
) -> None:
    """Write a run file with every setting, its default and what it means, ready to be changed.

    Example: trimtab init my_run.toml --recipe dapo, then trimtab train my_run.toml
    """
    from trimtab.cli.init import write_run_file

    write_run_file(path, recipe)


@app.command(name="eval", rich_help_panel=PANEL)
def evaluate(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a model folder (then name the task).")],
    overrides: Overrides = None,
    which: Annotated[str, typer.Option(help="Of a run folder: model (the last) or best.")] = "model",
    split: Annotated[str, typer.Option(help="validation or test.")] = "test",
    prompts: Annotated[int | None, typer.Option(min=1, help="Held-out prompts; default: as the run.")] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Also draw this many answers per prompt, for avg@k and pass@k.")
    ] = 0,
    show: Annotated[int, typer.Option(min=0, help="Print this many answers, wrong ones first.")] = 5,
    trust: Trust = False,
) -> None:
    """Measure a policy on held-out prompts: greedy accuracy, and with --samples avg@k and pass@k.

    Examples: trimtab eval runs/… · trimtab eval runs/… --which best --samples 8 · trimtab eval my_model train.task=sort
    """
    from trimtab.cli.evaluate import run_evaluation

    run_evaluation(folder, list(overrides or []), which, split, prompts, samples, show, trust=trust)


@app.command(rich_help_panel=PANEL)
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="A run folder; several are compared on one page. With --from: a log file.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page; default: RUN/report.html, comparison.html here for several, LOG.html for a log."),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="trl|verl",
            help="Read another framework's log: JSON lines, CSV, TensorBoard, trainer state.",
        ),
    ] = None,
) -> None:
    """Draw the page of a run again, one page that compares several, or the page of another framework's log.

    A log is read through the lexicon (docs/lexicon.md). The page says which names were read as what, what was left
    out, and which questions such a log cannot answer.

    Examples: trimtab report runs/… · trimtab report runs/a runs/b --out comparison.html ·
    trimtab report --from trl outputs/checkpoint-100/trainer_state.json
    """
    from trimtab.report import write_comparison, write_log_report, write_report

    if framework is not None:
        if len(runs) > 1:
            raise ConfigError("report: --from reads one log at a time. Make a page of each.")
        path, told = write_log_report(runs[0], framework, out)
        for sentence in told:
            print(sentence)
    elif len(runs) > 1:
        path = write_comparison(runs, out or Path("comparison.html"))
    else:
        path = write_report(runs[0])
        path = path if out is None else path.replace(out)
    print(f"report  {path}")


@app.command(rich_help_panel=PANEL)
def replay(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder with dumped batches (train.dump_batches=true, or a watch with dump_every), "
            "or one dumped batch (.safetensors)."
        ),
    ],
    overrides: Overrides = None,
    step: Annotated[int, typer.Option(min=0, help="The step to compute again.")] = 0,
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="A recipe for a batch of a watch or another framework; several are compared."),
    ] = None,
    framework: Annotated[
        str | None, typer.Option("--from", metavar="verl|trl|…", help="Whose names the tensors of the file have.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Compute a recorded step again and compare every metric with what was logged; or put its batch through a recipe.

    Without overrides: the run's own recipe; a metric that comes out different is an error (exit code 1).
    With overrides, such as recipe=reinforce_tis or signal.loss.band=[0.8,1.3]: the same batch under that recipe, side
    by side. A recipe can be replayed when it needs no more than the run's own recipe recorded.

    A batch that trimtab.watch dumped inside another trainer, or any .safetensors file with the tensors of a batch, goes
    through the recipes you name.

    Examples: trimtab replay runs/… --step 12 · trimtab replay runs/… --step 12 recipe=reinforce_tis ·
    trimtab replay batch.safetensors --from verl --recipe grpo --recipe tis
    """
    from trimtab.cli.replay import asked_recipes, run_replay, run_replay_dumped

    changed = list(overrides or [])
    if run.is_file() or (run / "watched").is_dir():
        raise typer.Exit(run_replay_dumped(run, step, asked_recipes(recipe or [], changed), framework))
    if framework is not None:
        raise ConfigError(f"replay: --from says whose names a file has, and {run} is no such file.")
    if recipe and len(recipe) > 1:
        raise ConfigError("replay: a run of trimtab is compared with one recipe at a time.")
    changed = [f"recipe={name}" for name in recipe or []] + changed
    raise typer.Exit(run_replay(run, step, changed, trust=trust))


@app.command(rich_help_panel=PANEL)
def study(
    protocol: Annotated[
        Path, typer.Argument(help="A protocol: question, arms, seeds, expectations (docs/studies.md).")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder of the study; default: runs/study-NAME.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once; default: as the protocol says.")] = None,
    cluster: Cluster = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the table only.")] = False,
) -> None:
    """Run arms x seeds in parallel processes or on a Ray cluster; write a table with intervals, a figure, a page.

    Prints the protocol's sha256 first. Finished runs are not run again, cut-off ones are resumed; a protocol that was
    changed in between is refused. Every seed is in the table, also those that failed.

    With --cluster each run is a task of Ray with one CPU; its folder comes back when it ends or is stopped.

    Examples: trimtab study studies/staleness_sort5.toml --jobs 2 ·
    trimtab study studies/staleness_sort5.toml --cluster auto --jobs 16
    """
    from trimtab.cli.study import show_study

    raise typer.Exit(show_study(protocol, out, jobs, quiet, cluster))


@app.command(rich_help_panel=PANEL)
def serve(
    model: Annotated[Path, typer.Argument(help="A model folder, for example the `model` folder of a run.")],
    more: Annotated[
        list[str] | None,
        typer.Argument(help="After --: flags of vLLM, passed on as they are.", metavar="-- VLLM_FLAGS"),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where it listens.")] = 8000,
    host: Annotated[
        str, typer.Option(help="The address it listens on. Other than loopback needs TRIMTAB_TOKEN, and a proxy.")
    ] = "127.0.0.1",
    slots: Annotated[int, typer.Option(min=1, help="Requests that it computes at once.")] = 64,
    dtype: Annotated[str, typer.Option(help="Number format of its parameters: auto, float32, bfloat16, …")] = "auto",
    max_length: Annotated[
        int, typer.Option(min=0, help="Tokens of the longest sequence, prompt included (0: as the model says).")
    ] = 0,
    lora_rank: Annotated[
        int, typer.Option(min=0, help="Take adapters of up to this rank, published alone (0: whole parameters).")
    ] = 0,
    environment: Annotated[
        Path | None,
        typer.Option("--env", help="The environment that vLLM is installed in. Default: $VLLM_ENV, or .vllm-env."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and why; start nothing.")] = False,
) -> None:
    """Start a vLLM server that a run can train against, and say why each of its flags is there.

    vLLM lives in an environment of its own: make vllm-env builds one for the CPU. The token that guards the server is
    read from TRIMTAB_TOKEN, or made and printed; it is handed over in the environment, never in the command. It does
    not guard every route: docs/engines.md says which, and what to do beyond one host.

    Examples: trimtab serve runs/…/model · trimtab serve my_model --port 8001 --slots 128 --dry-run ·
    trimtab serve my_model -- --tensor-parallel-size 2
    """
    from trimtab.cli.serve import run_server

    run_server(
        model,
        list(more or []),
        host=host,
        port=port,
        slots=slots,
        dtype=dtype,
        max_length=max_length,
        lora_rank=lora_rank,
        environment=environment,
        dry_run=dry_run,
    )


@app.command(rich_help_panel=PANEL)
def plan(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="A run file, or the folder of a run whose samplers worked beside the learner.", metavar="RUN"
        ),
    ] = None,
    overrides: Overrides = None,
    engine: Annotated[
        float | None,
        typer.Option(
            "--engine-tokens-per-second",
            min=1e-9,
            help="Tokens that one sampler device writes per second, all answers.",
        ),
    ] = None,
    learner: Annotated[
        float | None,
        typer.Option(
            "--learner-tokens-per-second", min=1e-9, help="Written tokens that one learner device trains on per second."
        ),
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Devices to share out.")] = 2,
    answer_tokens: Annotated[
        float | None, typer.Option(min=1, help="Tokens of an answer, mean; unset: train.max_new_tokens, the longest.")
    ] = None,
    publish_seconds: Annotated[
        float | None, typer.Option(min=0, help="From new parameters to a sampler that uses them; unset: none.")
    ] = None,
) -> None:
    """Say how many samplers per learner, which staleness, and where the time goes, before anything is run.

    The run's own runtime, pool and buffer work under a virtual clock: only durations are made up. With the folder of a
    run, its recorded durations are replayed first, which shows how far the plan can be believed; then its rates are
    used.

    Examples: trimtab plan run.toml --engine-tokens-per-second 4000 --learner-tokens-per-second 9000 --gpus 8 ·
    trimtab plan runs/a --gpus 4
    """
    from trimtab.cli.plan import Asked, run_plan

    asked = Asked(target, tuple(overrides or ()), engine, learner, gpus, answer_tokens, publish_seconds)
    raise typer.Exit(run_plan(asked))
