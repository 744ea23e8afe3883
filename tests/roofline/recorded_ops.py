"""Ops as a trace records them: run under the profiler, or written out from PyTorch's own schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from steptime.roofline.flops import OpCost, Signature, cost, parse_signature

_CPP_NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "c10::BFloat16",
    torch.float16: "c10::Half",
    torch.float8_e4m3fn: "c10::Float8_e4m3fn",
    torch.int32: "int",
    torch.int64: "long int",
    torch.int8: "signed char",
    torch.bool: "bool",
}


class Recorded:
    """One recorded op: its signature, and when it ran, in the trace's microseconds."""

    def __init__(self, event: dict[str, Any]) -> None:
        args = event["args"]
        texts = [json.dumps(args[key]) for key in ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")]
        signature = parse_signature(event["name"], *texts)
        assert signature is not None
        self.signature: Signature = signature
        self.start: float = event["ts"]
        self.end: float = event["ts"] + event["dur"]
        self.thread: str = str(event["tid"])


def record(run: Callable[[], object], folder: Path) -> list[Recorded]:
    """Run under the profiler with shapes, write the trace, and read back the ops that have shapes."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [Recorded(event) for event in events if event.get("cat") == "cpu_op" and "Input Dims" in event["args"]]


def one(ops: Sequence[Recorded], name: str) -> Signature:
    """The signature of the first recorded op of that name."""
    return next(op.signature for op in ops if op.signature.op == name)


def outermost_flops(ops: Sequence[Recorded]) -> int:
    """Model FLOPs, counting the outermost op with FLOPs only, as the documentation asks."""
    amount = 0
    covered: dict[str, float] = {}
    for op in sorted(ops, key=lambda op: (op.start, -op.end)):
        if op.start < covered.get(op.thread, float("-inf")):
            continue
        price = cost(op.signature)
        if price is not None and price.model_flops:
            amount += price.model_flops
            covered[op.thread] = op.end
    return amount


def counted(run: Callable[[], object]) -> int:
    """What `torch.utils.flop_counter` counts for the same call."""
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def from_schema(overload: Any, **values: Any) -> Signature:
    """The signature that the profiler would record, argument by argument in the order of the op's schema.

    Arguments that are not given take the schema's default. Tensors may live on any device, "meta" too.
    """
    dims: list[Any] = []
    types: list[str] = []
    concrete: list[str] = []
    for argument in overload._schema.arguments:
        value = values.pop(argument.name, argument.default_value)
        tensor = isinstance(value, torch.Tensor)
        dims.append(list(value.shape) if tensor else [])
        if tensor:
            types.append(_CPP_NAMES[value.dtype])
        else:
            types.append("" if value is None else "ScalarList" if isinstance(value, list) else "Scalar")
        concrete.append("" if tensor or value is None else str(value))
    assert not values, f"no such arguments: {sorted(values)}"
    signature = parse_signature(overload._schema.name, json.dumps(dims), json.dumps(types), json.dumps(concrete))
    assert signature is not None
    return signature


def registered(overload: Any, result: Any, /, **values: Any) -> int:
    """The formula that `flop_counter` registered for an op, applied to the same arguments (meta tensors will do)."""
    formula = flop_registry[overload.overloadpacket]
    arguments = [values.pop(a.name, a.default_value) for a in overload._schema.arguments]
    return int(formula(*arguments, out_val=result))


def price(signature: Signature, kernels: Sequence[str] = ()) -> OpCost:
    """The cost of an op that must have one."""
    found = cost(signature, kernels)
    assert found is not None, f"no cost for {signature}"
    return found


def literal(
    op: str, shapes: list[Any], dtypes: list[str], concrete: list[str] | None = None, kernels: Sequence[str] = ()
) -> OpCost:
    """The cost of an op written out as a trace has it."""
    signature = parse_signature(op, json.dumps(shapes), json.dumps(dtypes), json.dumps(concrete or []))
    assert signature is not None
    return price(signature, kernels)
