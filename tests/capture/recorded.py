"""Datagrams as torch 2.13 (CPU) sent them to a plain socket, and what it took as an answer; recorded 2026-11.

Only a process with a GPU sends a context, so `CONTEXT` is put together by the layout in kineto's ipcfabric/Utils.h.
"""

from __future__ import annotations

_PIDS = b" I\x00\x00\x1fI\x00\x00\x1dI\x00\x00\x16I\x00\x00\x15I\x00\x00\xb34\x00\x00\xb24\x00\x00"
_REQUEST = b",\x00\x00\x00\x00\x00\x00\x00req" + b"\x00" * 29
#: A poll of process 18720 and its six ancestors while nothing is recorded: kinds 3, no Slurm job.
POLL = _REQUEST + b"\x03\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + _PIDS
#: The poll after the config came: kinds 1, as a trace is being recorded.
BUSY_POLL = _REQUEST + b"\x01\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + _PIDS
PID, ANCESTORS = 18720, (18719, 18717, 18710, 18709, 13491, 13490)

CONFIG = "ACTIVITIES_LOG_FILE=/tmp/t.json\nPROFILE_START_ITERATION=0\nACTIVITIES_ITERATIONS=4\n"
#: Answers that the process took: no config for it, and `CONFIG`, after which it recorded four iterations.
NOTHING = b"\x00" * 8 + b"req" + b"\x00" * 29
ANSWER = b"R" + b"\x00" * 7 + b"req" + b"\x00" * 29 + CONFIG.encode()

#: GPU 0, process 18720, no job.
CONTEXT = b"\x10\x00\x00\x00\x00\x00\x00\x00ctxt" + b"\x00" * 28 + b"\x00" * 4 + b" I\x00\x00" + b"\x00" * 8
CONTEXT_ANSWER = b"\x04\x00\x00\x00\x00\x00\x00\x00ctxt" + b"\x00" * 28 + b"\x01\x00\x00\x00"
