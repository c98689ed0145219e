"""Builds the C extension where there is a compiler; without one the install still succeeds.

Everything else is in pyproject.toml. The extension uses the stable ABI, so one build serves every
Python from 3.11 on; free-threaded builds cannot use it and get a build of their own.
"""

import sysconfig
from pathlib import Path

from setuptools import Extension, setup

STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
SOURCES = Path("src/gradwatch/kernel/native")

native = Extension(
    "gradwatch.kernel._native",
    sources=sorted(str(path) for path in SOURCES.glob("*.c")),
    depends=sorted(str(path) for path in SOURCES.glob("*.h")),
    extra_compile_args=[
        "-O3",
        "-std=c11",
        "-ffp-contract=fast",
        "-fno-math-errno",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-pthread",
    ],
    extra_link_args=["-pthread"],
    libraries=["m"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE_ABI else [],
    py_limited_api=STABLE_ABI,
    optional=True,
)

setup(
    ext_modules=[native] if native.sources else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
)
