"""What is simulated: the scenario file, field by field.

A scenario is a TOML file with the tables below; every key has a default, an unknown key is refused. `[[fault]]` may
be repeated: a fault changes the job (or the recording), and the truth is the same job, same seed, without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from steptime.errors import UsageError
from steptime.simulate.catalog import preset


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transformer. `preset` fills what is not given; `layers` counts all layers of the job.

    experts > 0 makes every layer a mixture of `experts`, `top_k` of them for each token, of inner size `ffn`.
    """

    preset: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    experts: int | None = None
    top_k: int | None = None


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the job is split. world = dp x cp x tp x pp; rank order: tp fastest, then cp, dp, pp.

    ep divides dp: the experts of a layer lie on `ep` neighbours of the data-parallel dimension.
    chunks: model chunks of one stage (interleaved). early_receives: receives are posted on a stream of their own, not
    behind the compute launched before. stage_layers: layers of each chunk of the model in order, in place
    of an even split.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    fsdp: bool = False
    sequence_parallel: bool = False
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = "1f1b"
    chunks: int = 1
    early_receives: bool = False
    stage_layers: list[int] | None = None

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp


class Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens of one update and one data-parallel rank: micro_batches x micro_batch_size x seq_len."""

    micro_batches: int = 1
    micro_batch_size: int = 1
    seq_len: int = 4096


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How it is trained.

    prefetch: FSDP gathers the next layer's parameters while the current one computes. reshard: parameters are dropped
    after the forward and gathered again for the backward. bucket_mb: DDP's bucket. head_dtype: dtype of the output
    layer. log_every: the loop reads the loss (`.item()`) at the end of every n-th step, 0 never. item_syncs: `.item()`
    calls in the forward of each step on all ranks. bucket_syncs: the whole device is synchronised after each bucket of
    DDP. cuda_graph: each forward and backward is one launch. detail: kernels a layer, ``lean`` or ``full``.
    """

    recompute: Literal["none", "selective", "full"] = "none"
    prefetch: bool = True
    reshard: bool = True
    bucket_mb: float = 25.0
    optimizer: Literal["fused", "foreach", "loop"] = "fused"
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    head_dtype: Literal["bf16", "fp16", "fp32"] | None = None
    clip_grad: bool = False
    broadcast_buffers: bool = False
    log_every: int = 0
    item_syncs: int = 0
    bucket_syncs: bool = False
    cuda_graph: bool = False
    detail: Literal["lean", "full"] = "lean"


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine. *_bytes_per_s: one direction a GPU; 0 takes the GPU's own links. infinite: transfers take no time.

    matmul_share, attention_share, memory_share: what kernels reach of the peak.
    """

    gpu: str = "H100 SXM"
    gpus_per_host: int = 8
    link_share: float = 0.75
    intra_bytes_per_s: float = 0.0
    inter_bytes_per_s: float = 45e9
    intra_latency_us: float = 8.0
    inter_latency_us: float = 25.0
    infinite: bool = False
    matmul_share: float = 0.72
    attention_share: float = 0.5
    memory_share: float = 0.8


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The launching thread. Times of one op: before the launch call, the call, after it, and Python to the next one.

    queue_depth: launches that may be pending on the device; 0: a third of a step's, which is how far 1,024 reach in
    real steps of some thousand kernels. loader_us: what `next()` of the data loader takes.
    """

    op_us: float = 4.0
    launch_us: float = 4.0
    after_us: float = 1.0
    python_us: float = 3.0
    latency_us: float = 6.0
    gap_us: float = 1.0
    loader_us: float = 80.0
    step_us: float = 30.0
    queue_depth: int = 0


class Jitter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Untidiness. kernel, host, transfer: sigma of log-normal factors.

    outlier_share: steps in which one random rank computes slower, by outlier_size. ends: ends of one collective differ
    across ranks (0 to 20 us in a host, to 200 us between hosts, heavy tail).
    """

    kernel: float = 0.03
    host: float = 0.1
    transfer: float = 0.02
    outlier_share: float = 0.1
    outlier_size: float = 0.15
    ends: bool = True


class Clocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts' clocks: random offset within +-offset_ms and drift within +-drift_ppm, or given host by host."""

    offset_ms: float = 0.0
    drift_ppm: float = 0.0
    offsets_ms: list[float] | None = None
    drifts_ppm: list[float] | None = None


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the profiler records. warmup: steps simulated before.

    start_spread_us: starting the profiler holds each rank for a random time up to this. dialect: ``current`` (2.4 and
    later) or ``integer`` (1.12 to 2.3: whole microseconds, no collective metadata). seq: `Seq` of collectives, as since
    2026. p2p_metadata: False leaves the metadata of send and recv out. p2p_batched: they are registered first and
    launched after that, as `batch_isend_irecv` does, so that only the host's records have metadata. flows: ``ac2g``
    arrows. optimizer_marks: False leaves the optimizer's annotation out. compression: level of gzip, 1 (fast) to 9
    (small).
    """

    steps: int = 3
    first_step: int = 10
    warmup: int = 2
    start_spread_us: float = 1500.0
    dialect: Literal["current", "integer"] = "current"
    seq: bool = False
    p2p_metadata: bool = True
    p2p_batched: bool = False
    shapes: bool = True
    flows: bool = False
    step_marks: bool = True
    optimizer_marks: bool = True
    compression: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One injected fault. `kind` is a key of `faults.KINDS`, which says what `size`, `count` and `every` mean.

    ranks, hosts: where (both empty: the kind's default); steps: recorded numbers, empty: all; start: first step.
    """

    kind: str
    ranks: list[int] = []
    hosts: list[int] = []
    steps: list[int] = []
    size: float | None = None
    count: int = 1
    every: int = 1
    layers: list[int] | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole scenario."""

    name: str = "scenario"
    about: str = ""
    seed: int = 1
    model: Model = Model()
    layout: Layout = Layout()
    batch: Batch = Batch()
    training: Training = Training()
    cluster: Cluster = Cluster()
    host: Host = Host()
    jitter: Jitter = Jitter()
    clocks: Clocks = Clocks()
    recording: Recording = Recording()
    fault: list[Fault] = []


def load_scenario(path: Path | str) -> Scenario:
    """Read and check a scenario file.

    Raises:
        UsageError: the file can't be read, or describes no possible job; the message says which key.
    """
    try:
        scenario = msgspec.toml.decode(Path(path).read_bytes(), type=Scenario)
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror}): name a scenario file") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a scenario ({error}): see traces/scenarios for examples") from error
    try:
        check(scenario)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    if scenario.name == Scenario().name:
        scenario = msgspec.structs.replace(scenario, name=Path(path).stem)
    return scenario


def check(scenario: Scenario) -> None:
    """Refuse a job that could not run.

    Raises:
        UsageError: says which key and what to choose.
    """
    layout, batch, training = scenario.layout, scenario.batch, scenario.training
    dims = {name: getattr(layout, name) for name in ("dp", "tp", "pp", "ep", "cp", "chunks")}
    dims |= {"micro_batches": batch.micro_batches, "micro_batch_size": batch.micro_batch_size}
    dims |= {"seq_len": batch.seq_len, "recording.steps": scenario.recording.steps}
    for name, value in dims.items():
        if value < 1:
            raise UsageError(f"{name} is {value}: choose at least 1")
    pieces = layout.pp * layout.chunks
    shape = shape_of(scenario.model)
    rules = (
        (layout.dp % layout.ep == 0, f"ep ({layout.ep}) does not divide dp ({layout.dp}): choose a divisor"),
        (layout.chunks == 1 or layout.schedule == "interleaved", "chunks > 1 needs schedule = 'interleaved'"),
        (layout.chunks == 1 or layout.pp > 1, "chunks > 1 needs pp > 1"),
        (
            layout.schedule != "interleaved" or batch.micro_batches % layout.pp == 0,
            f"interleaved needs micro_batches ({batch.micro_batches}) to be a multiple of pp ({layout.pp})",
        ),
        (layout.ep == 1 or shape.experts > 0, "ep > 1 needs model.experts"),
        (layout.ep == 1 or shape.experts % layout.ep == 0, f"ep ({layout.ep}) does not divide the experts"),
        (
            shape.layers >= pieces or layout.stage_layers is not None,
            f"{shape.layers} layers are too few for {pieces} stages: raise model.layers",
        ),
        (batch.seq_len % layout.cp == 0, f"cp ({layout.cp}) does not divide seq_len ({batch.seq_len})"),
        (shape.heads % layout.tp == 0, f"tp ({layout.tp}) does not divide the {shape.heads} heads"),
        (
            training.recompute == "none" or layout.schedule != "zero-bubble",
            "recompute with zero-bubble is not offered: choose another schedule",
        ),
        (scenario.recording.warmup <= scenario.recording.first_step, "recording.warmup is larger than first_step"),
    )
    for holds, message in rules:
        if not holds:
            raise UsageError(message)
    if layout.stage_layers is not None and len(layout.stage_layers) != pieces:
        raise UsageError(f"stage_layers has {len(layout.stage_layers)} entries, the job {pieces} stages: give one each")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model with every size known."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    experts: int
    top_k: int


def shape_of(model: Model) -> Shape:
    """The sizes of a model: those given, else the preset's, else a small Llama's."""
    config = preset(model.preset) if model.preset is not None else {}

    def size(given: int | None, default: int, *keys: str) -> int:
        return given if given is not None else int(next((config[key] for key in keys if key in config), default))

    hidden = size(model.hidden, 4096, "hidden_size", "n_embd", "d_model")
    heads = size(model.heads, hidden // 128, "num_attention_heads", "n_head")
    experts = size(model.experts, 0, "num_local_experts", "n_routed_experts")
    inner = ("moe_intermediate_size", "intermediate_size") if experts else ("intermediate_size", "n_inner")
    return Shape(
        layers=size(model.layers, 8, "num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=size(model.kv_heads, heads, "num_key_value_heads"),
        head_dim=hidden // heads,
        ffn=size(model.ffn, 4 * hidden, *inner),
        vocab=size(model.vocab, 32000, "vocab_size"),
        experts=experts,
        top_k=size(model.top_k, 2, "num_experts_per_tok"),
    )
