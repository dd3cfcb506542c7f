"""`trimtab study`: run a protocol, show its progress, print its table."""

from contextlib import ExitStack
from pathlib import Path


def show_study(protocol: Path, out: Path | None, jobs: int | None, quiet: bool, cluster: str | None = None) -> int:
    """0 when every run gave a number, 1 when one failed or is missing; expectations are told, not judged.

    128 + signal when Ctrl-C, SIGTERM or SIGHUP stopped it.
    """
    from trimtab.config.study import load_study
    from trimtab.train.interrupt import exit_code
    from trimtab.train.study.progress import study_progress
    from trimtab.train.study.study import run_study

    with ExitStack() as held:
        launch = None
        if cluster is not None:
            from trimtab.train.cluster.study_runs import runs_on_cluster

            jobs = jobs or load_study(protocol).study.jobs
            launch = held.enter_context(runs_on_cluster(cluster, jobs))
        result = run_study(protocol, out=out, jobs=jobs, progress=study_progress(quiet=quiet), launch=launch)
    if quiet:
        print((result.folder / "study.md").read_text(encoding="utf-8"), end="")
    if result.interrupted:
        return exit_code(result.stopped_by or "SIGINT")
    return 0 if result.is_whole else 1
