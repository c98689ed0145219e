"""A pickled checkpoint refers to more than tensors.

What is seen: names in the pickle beside those that tensors need. Nothing of it was imported or
called here. A file that names what can run commands is refused altogether.

Why it hurts: `torch.load(weights_only=False)` would import these names and run what they say.

What helps: save the state_dict alone, best as safetensors.

Threshold: none; a single name is mentioned, as information.
"""

from gradwatch.checks.check import Outcome, Run, Severity, Stat, finding
from gradwatch.checks.tensors import checkpoint_of

NAME = "foreign-objects"
NEEDS = frozenset({Stat.WEIGHT_NORM})


def check(run: Run) -> Outcome:
    """Only mention them."""
    checkpoint = checkpoint_of(run)
    names = checkpoint.index.foreign
    if not names:
        return
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    yield finding(
        NAME,
        Severity.INFO,
        (),
        (checkpoint.step,),
        f"the file refers to {', '.join(name[:60] for name in names[:4])}{more}",
        (),
        cause="Something beside tensors was pickled into the checkpoint.",
        advice=("Save the state_dict alone, best as safetensors.",),
    )
