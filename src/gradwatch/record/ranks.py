"""Which process of how many this is, and the name they all find without asking each other."""

import os
import time

import torch


def rank_and_world() -> tuple[int, int]:
    """From torch.distributed where it runs, else from the launcher's variables, else 0 of 1."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (rank, world) if 0 <= rank < world else (0, 1)


def is_averaged_late() -> bool:
    """Whether gradients may be averaged over ranks after the accumulation hooks have run."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def common_name(what: str) -> str:
    """A run's name: under torchrun the same on every rank, otherwise from the time."""
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic and elastic != "none":
        return f"{what}-{elastic}"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{what}"
