"""Each analysis needs no torch, and the package itself not even numpy."""

import subprocess
import sys

MODULES = ("animator", "drift", "explosion", "flow", "gradients", "weights")


def test_no_analysis_imports_torch() -> None:
    code = (
        "import sys, importlib, gradwatch.analysis; lazy = 'numpy' not in sys.modules; "
        f"[importlib.import_module(f'gradwatch.analysis.{{name}}') for name in {MODULES}]; "
        "print(lazy, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
