"""Writes all kept outputs anew: `python -m tests.golden_output`, or `make golden`."""

import shutil
import tempfile
from pathlib import Path

from tests.golden_output.asking import answers, groups
from tests.golden_output.keeping import EXPECTED, keep
from tests.golden_output.making import make


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "made")
        found = {group: answers(group, Path(folder) / "made") for group in groups()}
    shutil.rmtree(EXPECTED, ignore_errors=True)
    for group, kept in found.items():
        keep(group, kept)
    files = [path for path in EXPECTED.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"Wrote {len(files)} outputs, {size / 1e6:.2f} MB, into {EXPECTED}; see git diff.")


if __name__ == "__main__":
    main()
