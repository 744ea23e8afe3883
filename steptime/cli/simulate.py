"""``steptime simulate``: traces of a job that was never run, with the truth about it."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("simulate", short_help="Write the traces of a simulated job, and the truth about it.")
@click.argument("scenario", metavar="SCENARIO.toml", type=click.Path(path_type=Path))
@click.option(
    "--out", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Folder of the traces and truth.json."
)
@click.option("--seed", type=int, metavar="N", help="Another seed than the scenario's.")
def command(scenario: Path, out: Path, seed: int | None) -> None:
    """Simulate the training job of SCENARIO.toml and write a trace for each rank to DIR.

    The scenario says the model, the layout, the machine and the faults; traces/scenarios has examples. DIR/truth.json
    holds what is true of the job: the culprits, where each rank's time went, and what the step takes without the
    faults.
    """
    from steptime.simulate import load_scenario, simulate

    truth = simulate(load_scenario(scenario), out, seed)
    ms = 1e6
    click.echo(
        f"{out}: {truth.world_size} ranks, step {truth.step_time_ns / ms:.1f} ms; "
        f"without its faults {truth.step_time_without_ns / ms:.1f} ms"
    )
