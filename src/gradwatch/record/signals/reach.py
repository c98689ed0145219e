"""Which parts of a model a loss reaches, read from its graph: for trainings with several losses."""

from torch import Tensor, nn

MOST = 5000
"""Nodes of a graph that are looked at; of a larger one nothing is said."""


def parts_reached(loss: Tensor, model: nn.Module) -> list[str]:
    """The model's outermost parts of which a parameter is in the loss's graph, in their order.

    Names only: nothing of the graph is kept, and it works before and after the backward.
    """
    owners = {id(p): name.partition(".")[0] for name, p in model.named_parameters()}
    waiting = [] if loss.grad_fn is None else [loss.grad_fn]
    seen, parts = set(waiting), set()
    while waiting:
        if len(seen) > MOST:
            return []
        node = waiting.pop()
        parts.add(owners.get(id(getattr(node, "variable", None)), ""))
        fresh = {child for child, _ in node.next_functions if child is not None} - seen
        seen |= fresh
        waiting += fresh
    return [part for part in dict.fromkeys(owners.values()) if part in parts]
