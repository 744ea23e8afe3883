"""``steptime goodput plan``: how often to write a checkpoint, and whether the model fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steptime.cli.goodput import goodput
from steptime.cli.goodput_outputs import deliver_goodput
from steptime.cli.outputs import check_places, output_options
from steptime.cli.params import Bytes, Duration
from steptime.errors import UsageError

if TYPE_CHECKING:
    from steptime.goodput.planning import Job, Writing
    from steptime.model.plan import ModelSize
    from steptime.roofline.hardware import Gpu
    from steptime.roofline.models import ModelShape

_HOUR_S, _DAY_S = 3600.0, 86_400.0


@goodput.command("plan", short_help="Say how often to write a checkpoint.")
@output_options
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", required=True, help="GPUs of the job.")
@click.option("--mtbf-gpu", "mtbf_h", type=float, metavar="H", required=True, help="Hours between failures of one GPU.")
@click.option("--restart", "restart_ns", type=Duration(), required=True, help="From a failure to the next new step.")
@click.option("--checkpoint-pause", "pause_ns", type=Duration(), help="How long a checkpoint stops training, as 33s.")
@click.option("--checkpoint-size", "size", type=Bytes(), help="Bytes of a checkpoint of the whole job, as 6.5TB.")
@click.option("--write-bandwidth", "write_rate", type=Bytes(), help="Of the storage, for all ranks together, as 2TB/s.")
@click.option("--copy-bandwidth", "copy_rate", type=Bytes(), help="From one GPU to its host; by default its PCIe rate.")
@click.option("--async", "is_async", is_flag=True, help="Checkpoints are written while training goes on.")
@click.option("--interval", "interval_ns", type=Duration(), help="Training between checkpoints today, to compare with.")
@click.option(
    "--weibull-shape", "shape", type=float, default=1.0, metavar="K", help="Below 1: failures come in clusters."
)
@click.option("--spares", type=click.IntRange(min=0), metavar="N", help="Spare hosts; without it, as many as needed.")
@click.option("--repair", "repair_ns", type=Duration(), help="Until a failed host is a spare again, as 24h.")
@click.option("--days", type=float, default=54.0, show_default=True, metavar="D", help="Length of a simulated run.")
@click.option("--runs", type=int, default=1000, show_default=True, metavar="N", help="Runs to simulate.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of the failures.")
@click.option("--model", metavar="MODEL", help="A Hugging Face config.json, a preset such as llama-3-8b, or 8e9.")
@click.option("--gpu", metavar="NAME", help="The GPU's row in steptime's table: does the model fit?")
@click.option("--gpu-memory", "memory", type=Bytes(), help="Memory of one GPU, as 80GiB, in place of the table's.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Tensor parallel.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Pipeline stages.")
@click.option("--zero", type=click.IntRange(0, 3), default=0, show_default=True, metavar="STAGE", help="Stage of ZeRO.")
@click.option("--micro-batch", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Sequences.")
@click.option(
    "--seq-len", type=click.IntRange(min=1), default=4096, show_default=True, metavar="N", help="Tokens of one."
)
@click.option(
    "--recompute",
    type=click.Choice(["none", "selective", "full"]),
    default="selective",
    show_default=True,
    help="Of activations; FlashAttention is selective.",
)
@click.option(
    "--fused-gate", is_flag=True, help="SwiGLU is one kernel (Megatron, Liger, torch.compile) and keeps less."
)
@click.option("--no-sequence-parallel", "plain", is_flag=True, help="Norms and dropouts whole on each tensor rank.")
def command(outputs: tuple[Path, ...], quiet: bool, **options: Any) -> None:
    """Say how often a job should write a checkpoint, what failures cost it, and what would change that.

    Young's and Daly's intervals, and simulated runs: failures, checkpoints, restarts, spare hosts. With --model, the
    bytes of a checkpoint; with --gpu or --gpu-memory too, whether a rank's weights, gradients, optimizer states and
    activations fit.
    """
    from steptime.report.goodput import format_for

    check_places(outputs, [], format_for)
    from steptime import __version__
    from steptime.goodput.planning import plan
    from steptime.model.inputs import Tool
    from steptime.model.plan import PlanAsk

    gpu = _gpu(options)
    job = _job(options, gpu)
    writing = _writing(options, gpu, job)
    pause_s, write_s = writing.times(options["gpus"])
    ask = PlanAsk(
        gpus=options["gpus"],
        mtbf_gpu_s=options["mtbf_h"] * _HOUR_S,
        pause_s=pause_s,
        restart_s=options["restart_ns"] / 1e9,
        write_s=write_s,
        weibull_shape=options["shape"],
        spares=options["spares"],
        repair_s=(options["repair_ns"] or 0) / 1e9,
        interval_s=_seconds(options["interval_ns"]),
        horizon_s=options["days"] * _DAY_S,
        runs=options["runs"],
        seed=options["seed"],
    )
    deliver_goodput(plan(ask, writing, Tool(name="steptime", version=__version__), job), outputs, quiet)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _gpu(options: dict[str, Any]) -> Gpu | None:
    if options["gpu"] is None:
        return None
    from steptime.roofline.hardware import gpu_named

    return gpu_named(options["gpu"])


def _writing(options: dict[str, Any], gpu: Gpu | None, job: Job | None) -> Writing:
    from steptime.goodput.memory import checkpoint_bytes
    from steptime.goodput.planning import Writing

    size = options["size"]
    if size is None and job is not None:
        size = float(checkpoint_bytes(job.model).total)
    copy_rate = options["copy_rate"]
    if copy_rate is None and gpu is not None and gpu.pcie_bytes_per_s is not None:
        copy_rate = gpu.pcie_bytes_per_s.usable
    return Writing(
        pause_s=_seconds(options["pause_ns"]),
        size_bytes=size,
        write_bytes_per_s=options["write_rate"],
        copy_bytes_per_s=copy_rate,
        is_async=options["is_async"],
    )


def _job(options: dict[str, Any], gpu: Gpu | None) -> Job | None:
    """The model as plain numbers, and the memory that it must fit into."""
    if options["model"] is None:
        return None
    from steptime.goodput.planning import Job
    from steptime.model.plan import Layout
    from steptime.roofline.models import load_model

    layout = Layout(
        gpus=options["gpus"],
        tensor=options["tp"],
        pipeline=options["pp"],
        zero=options["zero"],
        micro_batch=options["micro_batch"],
        sequence=options["seq_len"],
        recompute=options["recompute"],
        sequence_parallel=not options["plain"],
        fused_gate=options["fused_gate"],
    )
    memory, name = _memory(options, gpu)
    return Job(model_size(load_model(options["model"])), layout, name, memory)


def _memory(options: dict[str, Any], gpu: Gpu | None) -> tuple[int | None, str]:
    """The bytes of one GPU, None if no GPU was named, and what it is called."""
    if options["memory"] is not None:
        return round(options["memory"]), gpu.name if gpu is not None else "a GPU"
    if gpu is None:
        return None, ""
    sizes = [size.usable for size in gpu.memory_bytes if size.usable is not None]
    if len(sizes) != 1:
        known = " and ".join(f"{size / 2**30:g} GiB" for size in sizes) or "no confirmed size"
        raise UsageError(f"--gpu {gpu.name}: the table has {known}: say which one it is with --gpu-memory")
    return round(sizes[0]), gpu.name


def model_size(shape: ModelShape) -> ModelSize:
    """A model's shape as the plain numbers that its bytes depend on; widths are means over its layers."""
    from steptime.model.plan import ModelSize

    layers = len(shape.layers)
    if not layers:
        return ModelSize(name=shape.name, source=shape.source, parameters=shape.total_parameters)
    matrices = 3 if shape.gated else 2
    wide = sum(layer.mlp for layer in shape.layers) // (matrices * shape.hidden * layers)
    return ModelSize(
        name=shape.name,
        source=shape.source,
        parameters=shape.total_parameters,
        layers=layers,
        hidden=shape.hidden,
        heads=shape.heads,
        query_width=shape.heads * shape.qk_head_dim,
        key_width=shape.kv_heads * shape.qk_head_dim,
        value_width=shape.kv_heads * shape.v_head_dim,
        attention_width=shape.heads * shape.v_head_dim,
        mlp_width=wide,
        gated=shape.gated,
        vocab=shape.vocab,
        table_parameters=shape.table_parameters,
        head_parameters=shape.head_parameters,
        tied=shape.tied,
    )
