"""Runs what users compile as they wrote it.

Each worker would compile it again, and lanes, which fuse trials, cannot call compiled code. On a GPU the engine
compiles whole updates itself (`study.engine.fused.compiled`).
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

DISABLE = "TORCHDYNAMO_DISABLE"
"""The variable that makes `torch.compile` return its argument. TORCH_COMPILE_DISABLE would not do: it refuses
`fullgraph=True`, and a process that imports torch's compiler under it never compiles again."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let functions and modules of `torch.compile` run as they are in this block, and in processes that it starts."""
    before = os.environ.get(DISABLE)
    os.environ[DISABLE] = "1"
    imported = "torch._dynamo" in sys.modules
    try:
        with sys.modules["torch"].compiler.set_stance("force_eager") if imported else nullcontext():
            yield
    finally:
        if before is None:
            os.environ.pop(DISABLE, None)  # a user's code may have cleared all variables
        else:
            os.environ[DISABLE] = before
