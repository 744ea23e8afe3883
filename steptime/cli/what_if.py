"""``steptime what-if``: what makes the job slow, by replaying it with some of its times changed."""

from __future__ import annotations

from pathlib import Path

import click

from steptime.errors import UsageError

_OP_LEVEL = ".parquet"


@click.command("what-if", short_help="Replay a job with some of its times changed.")
@click.argument("path", metavar="JOB.parquet", type=click.Path(path_type=Path))
def command(path: Path) -> None:
    """Replay JOB.parquet, one row for each op of a pipeline, and say what slows the job down.

    The file is trace-NAME.parquet of the OSDI'25 straggler analysis, with meta-NAME.yaml beside it: columns dp_rank,
    stage, step, optype, seq_id, start_ts, duration. It needs pip install 'steptime[oplevel]'.
    """
    if path.suffix != _OP_LEVEL:
        raise UsageError(f"{path}: what-if replays op-level recordings (JOB.parquet); this is none by its name")
    from steptime.report.oplevel import render
    from steptime.whatif.oplevel.analysis import analyze_oplevel

    click.echo(render(analyze_oplevel(path)), nl=False)
