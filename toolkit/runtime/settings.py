"""The settings of a process that computes: set before JAX starts, and written into the record of a run.

Compiled results depend on how many CPUs XLA saw, so identity of bits is promised for equal settings and CPU model only.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: Freed memory is kept, not returned to the system and faulted in again at every step. A threshold of mapping has
#: a limit of 32 MB, less than the scratch memory of a step: nothing is mapped, and only the first arena grows so far.
_ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "67108864",
}

_THREADS = {name: "1" for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "dask", "distributed", "pandas", "toolkit")


def environment() -> dict[str, str]:
    """The variables of a process that computes with one thread."""
    flags = os.environ.get("XLA_FLAGS", "")
    single = "--xla_cpu_multi_thread_eigen=false"
    return {
        **_THREADS,
        **_ALLOCATOR,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags if single in flags else f"{flags} {single}".strip(),
    }


def describe() -> dict[str, Any]:
    """The settings of this process, for the record of a run."""
    names = ("NPROC", "XLA_FLAGS", "OMP_NUM_THREADS", "GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "JAX_ENABLE_X64")
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        **{name: os.environ.get(name) for name in names},
    }


def cpu_model() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def adopt() -> None:
    """Give this process the variables of :func:`environment` that still help: those that XLA reads when it starts.

    For processes that somebody else started; what they have set stays.
    """
    for name, value in environment().items():
        if name not in _ALLOCATOR:
            os.environ.setdefault(name, value)
