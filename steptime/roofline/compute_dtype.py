"""The arithmetic type of an op: from the types of its operands, refined by the names of its kernels.

A trace does not record whether an FP32 matmul ran as TF32 or BF16 tensor-core arithmetic, nor what an FP8 recipe hides
in `unsigned char` storage; the kernel's name usually does. A name that says nothing changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_STORAGE = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
    "c10::Float4_e2m1fn_x2": "fp4",
    "signed char": "int8",
    "c10::qint8": "int8",
}

# In order of preference: the first that any kernel of the op matches. Names seen in traces of cuBLAS, cuDNN, CUTLASS,
# nvJet, hipBLASLt (Tensile) and MIOpen. `s1688` is TF32 unless the name also names a 16-bit type (Turing's FP16 form).
_KERNELS = (
    ("fp4", re.compile(r"e2m1|fp4|nvf4|mxf4", re.IGNORECASE)),
    ("fp8", re.compile(r"e4m3|e5m2|fp8|nvjet_(?:sm\d+_)?qq|Cijk_\w+?_(?:F8|B8|F8B8|B8F8)", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|xf32|Cijk_\w+?_S_MX_|s1688(?!.*f16)(?!.*fp16)(?<!fp16_s1688)(?<!f16_s1688)")),
    ("bf16", re.compile(r"bf16|bfloat16|nvjet_(?:sm\d+_)?tst_|Cijk_\w+?_(?:BBS|BSS|BB)_", re.IGNORECASE)),
    ("fp16", re.compile(r"(?<!b)f16|fp16|__half|half_t|c10::Half|[hs]884|hgemm|h16816|nvjet_(?:sm\d+_)?hsh_"
                        r"|Cijk_\w+?_(?:HHS|HSS|HB)_")),
    ("int8", re.compile(r"i8i8|s8s8|i16832|int8", re.IGNORECASE)),
    ("fp64", re.compile(r"dgemm|f64f64|Cijk_\w+?_DB_|<(?:int, )*double\b")),
    ("fp32", re.compile(r"sgemm|scudnn|simt_s|f32f32_f32f32|_f32_aligned|Cijk_\w+?_SB_|_fp32_|<(?:int, )*float\b")),
)  # fmt: skip

# What a kernel's name may say about operands of a storage type; anything else is about something else.
_ACCEPTED = {
    "fp32": frozenset(("tf32", "bf16", "fp16", "fp32")),
    "bf16": frozenset(("fp8", "fp4")),
    "fp16": frozenset(("fp8", "fp4")),
}
_PACKED_BYTES = frozenset(("fp8", "fp4", "int8"))


def kernel_dtype(name: str) -> str | None:
    """The arithmetic type that a kernel's name states, or None."""
    for dtype, pattern in _KERNELS:
        if pattern.search(name):
            return dtype
    return None


def compute_dtype(storage: str, kernels: Sequence[str] = ()) -> str | None:
    """The arithmetic type of an op on operands of a C++ type name ("" when not recorded); None when unknown."""
    stated = _STORAGE.get(storage)
    if not kernels:
        return stated
    named = {kernel_dtype(kernel) for kernel in kernels}
    if stated is not None:
        allowed = _ACCEPTED.get(stated, frozenset())
    elif storage == "unsigned char":
        allowed = _PACKED_BYTES
    elif storage == "":
        allowed = frozenset(dtype for dtype, _ in _KERNELS)
    else:
        return None
    return next((dtype for dtype, _ in _KERNELS if dtype in named and dtype in allowed), stated)
