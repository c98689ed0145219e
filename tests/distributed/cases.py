"""The table of parallel trainings: how the model is spread over ranks, and what the loop does."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

STEPS, LOCAL_BATCH, FEATURES = 6, 4, 6
CLIP = 0.05


class Net(nn.Module):
    """Odd sizes: with four ranks `odd` is cut unevenly and `last` leaves ranks without a piece."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 8)
        self.odd = nn.Linear(8, 5)
        self.last = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.odd(torch.tanh(self.first(x)))))
        return out


def network(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(11)
    return Net().to(dtype)


def batch(step: int, micro: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every rank has data of its own, and of its own scale, so that local gradients differ."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    inputs = torch.randn(LOCAL_BATCH, FEATURES, generator=generator) * (1 + rank)
    return inputs, inputs.sum(dim=1, keepdim=True).sin()


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(inputs), targets)


def ddp(model: nn.Module, world: int, **options: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, **options)


def fsdp(model: nn.Module, world: int) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    return model


def hsdp(model: nn.Module, world: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(model: nn.Module, world: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    return _parallel(model, init_device_mesh("cpu", (world,)))


def fsdp_and_tensor(model: nn.Module, world: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
    model = _parallel(model, mesh["tensor"])
    for layer in model.children():
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model


def _parallel(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"first": ColwiseParallel(), "odd": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


@dataclass(frozen=True)
class Case:
    name: str
    ranks: int
    spread: Callable[..., nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    micro_batches: int = 1
    clip: bool = False
    scaler: bool = False
    same_data: int = 1
    """Ranks in a row that see the same batch (the tensor-parallel ones)."""

    def data_rank(self, rank: int) -> int:
        return rank // self.same_data


CASES = (
    Case("ddp", 2, ddp),
    Case("ddp-bucket-view", 2, ddp, {"gradient_as_bucket_view": True}),
    Case("ddp-static-graph", 2, ddp, {"static_graph": True}),
    Case("ddp-accumulated", 2, ddp, micro_batches=2),
    Case("ddp-clipped", 2, ddp, clip=True),
    Case("ddp-scaled", 2, ddp, scaler=True),
    Case("ddp-clipped-accumulated-scaled", 2, ddp, clip=True, micro_batches=2, scaler=True),
    Case("fsdp", 2, fsdp),
    Case("fsdp-clipped", 2, fsdp, clip=True),
    Case("fsdp-accumulated", 2, fsdp, micro_batches=2),
    Case("tensor-parallel", 2, tensor_parallel, same_data=2),
    Case("ddp-on-four", 4, ddp),
    Case("fsdp-on-four", 4, fsdp),
    Case("hsdp", 4, hsdp),
    Case("hsdp-clipped", 4, hsdp, clip=True),
    Case("fsdp-and-tensor-parallel", 4, fsdp_and_tensor, same_data=2),
)
