"""The part of a tensor this process holds, and where it lies in the whole."""

from torch import Tensor
from torch.nn import Parameter

from gradwatch.run import Placement

_PLAIN = (Tensor, Parameter)


def local(tensor: Tensor) -> Tensor:
    """The memory of this rank: a sharded tensor's own piece, without any communication."""
    if type(tensor) in _PLAIN:
        return tensor
    piece = getattr(tensor, "_local_tensor", None)
    return piece if isinstance(piece, Tensor) else tensor


def placement(tensor: Tensor) -> Placement | None:
    """Which piece of the whole this rank holds; None for an ordinary tensor."""
    if not isinstance(getattr(tensor, "_local_tensor", None), Tensor):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    replica = 0
    coordinate = mesh.get_coordinate() or [0] * mesh.ndim
    for dim, placed in enumerate(placements):
        if placed.is_replicate():
            replica = replica * mesh.size(dim) + coordinate[dim]
    return Placement(tuple(tensor.shape), tuple(offset), tuple(shape), replica)


def flat_offset(place: Placement | None) -> int:
    """Flat index of the piece's first element in the whole, right for pieces cut along dim 0."""
    if place is None or not place.offset:
        return 0
    inner = 1
    for size in place.global_shape[1:]:
        inner *= size
    return place.offset[0] * inner
