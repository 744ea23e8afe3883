"""``steptime goodput watch``: what an alert would have seen in a run's own log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steptime.cli.goodput import goodput
from steptime.cli.goodput_outputs import deliver_goodput
from steptime.cli.outputs import check_places, output_options


@goodput.command("watch", short_help="Say what an alert would have seen in a run's log.")
@click.argument("metrics", metavar="METRICS")
@output_options
@click.option(
    "--checkpoint-every", type=click.IntRange(min=1), metavar="STEPS", help="Where could a spike be rewound to?"
)
@click.option("--target-loss", type=float, metavar="X", help="When was it reached?")
@click.option("--loss", metavar="COLUMN", help="The column with the training loss, where its name does not tell.")
@click.option("--grad-norm", metavar="COLUMN", help="The one with the gradient norm.")
@click.option("--throughput", metavar="COLUMN", help="The one with the throughput.")
@click.option("--mfu", metavar="COLUMN", help="The one with MFU.")
@click.option("--update-ratio", metavar="COLUMN", help="The one with the update-to-weight ratio.")
@click.option("--timezone", "zone", default="UTC", show_default=True, metavar="ZONE", help="Of times without a zone.")
def command(metrics: str, outputs: tuple[Path, ...], quiet: bool, zone: str, **options: Any) -> None:
    """Say what an alert would have seen in METRICS, without looking ahead: spikes, NaN, plateaus, drops.

    METRICS is what a run logged at its steps: JSON lines, CSV, or a folder of TensorBoard event files.
    """
    from steptime.report.goodput import format_for

    check_places(outputs, [metrics], format_for)
    from steptime import __version__
    from steptime.goodput.metrics_file import read_metrics
    from steptime.goodput.watching import WATCHED, WatchAsk, watch
    from steptime.model.inputs import Tool

    named = tuple((what, options[what]) for what in WATCHED if options[what] is not None)
    ask = WatchAsk(options["checkpoint_every"], options["target_loss"], named)
    found = watch(read_metrics(metrics, zone), ask, Tool(name="steptime", version=__version__))
    deliver_goodput(found, outputs, quiet)
