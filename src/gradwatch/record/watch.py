"""From the arguments of `watch` to a running watcher; wrong ones raise here and nowhere later."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradwatch.checks.logged import LossLevel
from gradwatch.mode import Mode, doubt, mode
from gradwatch.record.cpu import cpu_engine
from gradwatch.record.device import check_forced, device_engines
from gradwatch.record.guard import log
from gradwatch.record.hooks import bare_optimizer
from gradwatch.record.options import Options, usage_error
from gradwatch.record.parameters import Networks, named_parameters, unwrap
from gradwatch.record.watcher import Disabled, Watcher, close_previous
from gradwatch.store import Writer
from gradwatch.store.places import is_url
from gradwatch.store.runs import folder_name, hold, next_attempt

HOME = Path("runs")
Models = Module | Sequence[Module] | Mapping[str, Module]
"""One network, or several that are trained together."""
_THERE = (
    "gradwatch: %s is there already: this training takes its place. Name another run, or resume "
    "with watch(..., step=N)"
)
_HELD = (
    "gradwatch: another training is recorded to %s at this moment; this one goes beside it. Give "
    "each training a name of its own"
)


def watch(
    model: Models, *optimizers: Any, run: str | os.PathLike[str] | None = None, **how: Any
) -> Watcher | Disabled:
    """Record the training of `model` into a run folder, from now until `close`.

    `how` are the arguments of `Options`.
    """
    options = Options(**how)
    model = _model(model)
    torch_optimizers = [_optimizer(thing) for thing in _flat(optimizers)]
    names = [named.name for named in named_parameters(model)]
    if not any(map(options.wanted, names)):
        few = f"`include` and `exclude` leave no parameter to watch of {', '.join(names[:5])} …"
        none = f"{type(model).__name__} has no parameters to watch."
        raise usage_error(few if names else none)
    there = [parameter for parameter in model.parameters() if not is_lazy(parameter)]
    if any(parameter.is_meta for parameter in there):
        raise usage_error(
            "The model is on the meta device, where it has no numbers: watch it after "
            "model.to_empty(device=...) and when its weights are set."
        )
    check_forced(there)
    kind, (rank, world) = _kind(model), rank_and_world()
    candidates = _candidates(run, kind, world)
    if mode() is Mode.OFF:
        return Disabled()
    if unknown := doubt():  # not by `warnings`: under -W error they raise
        log.warning("gradwatch: %s", unknown)
    close_previous(model)
    versions = {"torch": str(torch.__version__)}
    info = {
        "versions": versions,
        "engines": cpu_engine() | device_engines(model.parameters()),
        "model": kind,
        "optimizer": ", ".join(type(optimizer).__name__ for optimizer in torch_optimizers),
    }
    held = None
    for name, path in candidates:
        try:
            held = hold(path, name, versions) if world == 1 else None
            break  # several ranks share a run
        except BlockingIOError:
            log.warning(_HELD, path)
    if options.step is None and next_attempt(path, rank):
        log.warning(_THERE, path)
    writer = Writer.create(path, name=name, rank=rank, world=world, info=info, keep=options.keep)
    writer.held = held
    writer.patient = options.every is not None  # who names the steps gets them all
    watcher = Watcher(model, torch_optimizers, writer, options)
    watcher.run_dir = path
    if options.loss is not LossLevel.AUTO:
        watcher.controller.recorder.note({"loss_level": options.loss.value})
    return watcher


def _model(given: Any) -> Module:
    """The model to watch; several networks become one, each named by its place or key."""
    if isinstance(given, Module):
        return given
    if isinstance(given, Mapping | list | tuple):
        named = given if isinstance(given, Mapping) else dict(enumerate(given))
        networks = {str(name): network for name, network in named.items()}
        named_well = networks and not any(not name or "." in name for name in networks)
        if named_well and all(isinstance(network, Module) for network in networks.values()):
            return Networks(networks)
        kinds = {name: type(network).__name__ for name, network in networks.items()}
        raise usage_error(
            f"Expected networks, named without dots, got {kinds}. Type "
            'watch([G, D], opt_g, opt_d) or watch({"G": G, "D": D}, opt_g, opt_d).'
        )
    what = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    raise usage_error(
        f"Expected a torch.nn.Module to watch, got {what}. The model itself comes first: type "
        "watch(model, optimizer)."
    )


def _kind(model: Module) -> str:
    """The class of the model; of several networks their names and classes."""
    if not isinstance(model, Networks):
        return type(unwrap(model)).__name__.removeprefix("FSDP")  # which FSDP2 puts in front
    parts = model.named_children()
    return "+".join(type(net).__name__ if name.isdigit() else name for name, net in parts)


def _flat(optimizers: Iterable[Any]) -> Iterator[Any]:
    """One after the other, also out of lists and dicts of them."""
    for thing in optimizers:
        if isinstance(thing, Mapping | list | tuple):
            yield from _flat(thing.values() if isinstance(thing, Mapping) else thing)
        else:
            yield thing


def _optimizer(thing: Any) -> Optimizer:
    optimizer = bare_optimizer(thing)
    if optimizer is None:
        raise usage_error(
            f"Expected a torch optimizer, got {type(thing).__name__}. Several networks go into a "
            "list, watch([G, D], opt_g, opt_d); a scaler is named, watch(model, optimizer, "
            "scaler=scaler); any other optimizer is left out, watch(model), and watcher.step() "
            "called after each of its steps."
        )
    return optimizer


def _candidates(run: Any, what: str, world: int) -> Iterator[tuple[str, Path]]:
    """Name and folder of the run, and those to take instead where another training holds it.

    They are `runs/NAME` for a name, the path given, or `runs/<time>-<model>`; under torchrun
    `runs/<model>-<id>`, the same on every rank.
    """
    if run is None:
        elastic = os.environ.get("TORCHELASTIC_RUN_ID", "none")
        known = elastic not in ("", "none")
        name = f"{what}-{elastic}" if known else f"{time.strftime('%Y%m%d-%H%M%S')}-{what}"
        path = HOME / folder_name(name)
        is_new = world == 1 and not known  # two trainings may begin in one second
    else:
        name, path = _named(run)
        is_new = False
    for number in count(1):
        end = f"-{number}" if number > 1 else ""
        place = path.with_name(path.name + end)
        if not (is_new and place.exists()):
            yield name + end, place


def _named(run: str | os.PathLike[str]) -> tuple[str, Path]:
    text = os.fspath(run)
    if not isinstance(text, str) or not text:
        raise usage_error(f"`run` must be a name or a path, got {run!r}.")
    if is_url(text):
        raise usage_error(
            f"`run` must be a name or a path of this machine, got {text.partition(':')[0]}://…; "
            "record here, and copy with `gradwatch export RUN -o URL`."
        )
    # pathlib sees no name in "."; a run of that name goes into `runs` like any other
    if isinstance(run, str) and os.path.basename(text) == text:  # noqa: PTH119
        return text, HOME / folder_name(text)
    return Path(text).name, Path(text)


# -- ranks -------------------------------------------------------------------------------------


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
