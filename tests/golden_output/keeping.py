"""The kept answers: read, written, compared."""

import difflib
import json
import shutil
from pathlib import Path

from tests.golden_output.asking import Answers
from tests.golden_output.masking import differences, written

EXPECTED = Path(__file__).parent / "expected"
SHOWN = 60


def keep(group: str, answers: Answers) -> None:
    """Replace what was kept of a group."""
    folder = EXPECTED / group
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, answer in answers.items():
        text = answer if name.endswith(".txt") else f"{written(answer)}\n"
        (folder / name).write_text(text, "utf-8")


def compared(group: str, answers: Answers) -> list[str]:
    """What is not as it was kept, in lines for a person."""
    folder = EXPECTED / group
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    out = [f"{group}/{name}: is not asked any more" for name in sorted(names - set(answers))]
    for name, answer in answers.items():
        if name not in names:
            out.append(f"{group}/{name}: is not kept yet")
            continue
        kept = (folder / name).read_text("utf-8")
        if name.endswith(".json"):
            found = differences(json.loads(kept), json.loads(json.dumps(answer)))
        else:
            found = list(
                difflib.unified_diff(kept.splitlines(), answer.splitlines(), "kept", "now", "", "")
            )
        if found:
            rest = [f"… and {len(found) - SHOWN} more lines"] if len(found) > SHOWN else []
            out.extend([f"{group}/{name} differs:", *found[:SHOWN], *rest])
    return out
