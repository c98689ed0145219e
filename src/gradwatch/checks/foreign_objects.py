"""A pickled checkpoint refers to more than tensors.

What is seen: names in the pickle beside those that are known to be harmless: of torch and numpy
what makes tensors, arrays and numbers, and Python's plain types. Nothing of it was imported or
called here. A file that names what is known to run commands is refused altogether.

Why it hurts: `torch.load(weights_only=False)` would import these names and run what they say, with
all your rights. Whether that is a harmless class or an attack cannot be told from a name.

What helps: save the state_dict alone, best as safetensors. Load a file of somebody else only with
`weights_only=True`.

Threshold: none; a single name that is not known is a warning.
"""

from gradwatch.checks.check import Outcome, Run, Severity, Stat, finding
from gradwatch.checks.tensors import checkpoint_of

NAME = "foreign-objects"
NEEDS = frozenset({Stat.WEIGHT_NORM})


def check(run: Run) -> Outcome:
    """One finding with every name."""
    checkpoint = checkpoint_of(run)
    names = checkpoint.index.foreign
    if not names:
        return
    yield finding(
        NAME,
        Severity.WARNING,
        (),
        (checkpoint.step,),
        f"the file refers to {', '.join(name[:120] for name in names)}",
        (),
        cause="Something beside tensors was pickled into the checkpoint.",
        advice=(
            "Save the state_dict alone, best as safetensors.",
            "Load it with weights_only=True unless you trust whoever made it.",
        ),
    )
