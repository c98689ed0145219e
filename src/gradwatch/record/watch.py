"""From the arguments of `watch` to a running watcher; wrong ones raise here and nowhere later."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from gradwatch.record.options import ALL, Patterns, options, usage_error
from gradwatch.record.parameters import Networks, named_parameters, unwrap
from gradwatch.record.recorder import StepMonitor
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
    "gradwatch: another training is recorded to %s at this moment; this one goes to %s. Give each "
    "training a name of its own"
)
_META = (
    "The model is on the meta device, where it has no numbers. Give it memory first "
    "(model.to_empty(device=...), then its weights), and watch it then."
)


def watch(
    model: Models,
    *optimizers: Any,
    run: str | os.PathLike[str] | None = None,
    step: int | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    record: Iterable[str] = ALL,
    scaler: Any = None,
    every: int | None = None,
    budget: float = 0.01,
    keep: str = "2GB",
    loss: str = LossLevel.AUTO,
    monitor: StepMonitor | None = None,
) -> Watcher | Disabled:
    """Record the training of `model` into a run folder, from now until `close`."""
    chosen = options(
        record=record, every=every, budget=budget, include=include, exclude=exclude, keep=keep
    )
    model = _model(model)
    torch_optimizers = [_optimizer(thing) for thing in _flat(optimizers)]
    first = _first_step(step)
    level = _level(loss)
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise usage_error(f"`scaler` must be a GradScaler, got {type(scaler).__name__}.")
    if not any(chosen.wanted(named.name) for named in named_parameters(model)):
        raise usage_error(_nothing(model, include, exclude))
    there = [parameter for parameter in model.parameters() if not is_lazy(parameter)]
    if any(parameter.is_meta for parameter in there):
        raise usage_error(_META)
    check_forced(there)
    if mode() is Mode.OFF:
        return Disabled()
    if unknown := doubt():  # not by `warnings`: under -W error they raise
        log.warning("gradwatch: %s", unknown)
    close_previous(model)
    name, path = _place(run, _kind(model))
    rank, world = rank_and_world()
    noted = {} if level is LossLevel.AUTO else {"loss_level": level.value}
    info = _info(model, torch_optimizers) | noted
    name, path, held = _unshared(name, path, world, info["versions"])
    if step is None and next_attempt(path, rank):
        log.warning(_THERE, path)
    if monitor is not None and noted:
        monitor.noted(noted)
    writer = Writer.create(path, name=name, rank=rank, world=world, info=info, keep=chosen.keep)
    writer.held = held
    writer.patient = every is not None  # who names the steps gets them all
    return Watcher(
        model,
        torch_optimizers,
        sink=writer,
        options=chosen,
        first_step=first,
        scaler=scaler,
        run_dir=path,
        monitor=monitor,
    )


def _first_step(step: int | None) -> int:
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise usage_error(f"`step` must be the number of the coming step, 0 or more, got {step!r}.")
    return step or 0


def _model(given: Any) -> Module:
    """The model to watch; several networks become one, each named by its place or key."""
    if isinstance(given, Module):
        return given
    if isinstance(given, Mapping | list | tuple):
        named = given if isinstance(given, Mapping) else dict(enumerate(given))
        networks = {str(name): network for name, network in named.items()}
        wrong = [thing for thing in networks.values() if not isinstance(thing, Module)]
        if networks and not wrong and not any(not name or "." in name for name in networks):
            return Networks(networks)
        what = f"{type(wrong[0]).__name__} among them" if wrong else f"{[*networks]}"
        raise usage_error(
            f"Expected networks, named without dots, got {what}. Type "
            'watch([G, D], opt_g, opt_d) or watch({"G": G, "D": D}, opt_g, opt_d).'
        )
    if isinstance(given, type) and issubclass(given, Module):
        what = f"the class {given.__name__}; make a network of it first"
    elif bare_optimizer(given) is not None:
        what = f"the optimizer {type(given).__name__}; the model comes first"
    else:
        what = type(given).__name__
    raise usage_error(
        f"Expected a torch.nn.Module to watch, got {what}. Type watch(model, optimizer)."
    )


def _level(loss: str) -> LossLevel:
    try:
        return LossLevel(loss)
    except ValueError:
        known = ", ".join(LossLevel)
        raise usage_error(f"`loss` says what its level means: {known}; got {loss!r}.") from None


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
    if optimizer is not None:
        return optimizer
    if isinstance(thing, Module):
        hint = "Several networks go into a list: watch([G, D], opt_g, opt_d)."
    elif hasattr(thing, "get_scale"):
        hint = "Name a scaler: watch(model, optimizer, scaler=scaler)."
    else:
        hint = (
            "For any other optimizer leave it out, watch(model), and call watcher.step() after "
            "each of its steps."
        )
    raise usage_error(f"Expected a torch optimizer, got {type(thing).__name__}. {hint}")


def _place(run: str | os.PathLike[str] | None, what: str) -> tuple[str, Path]:
    """Name and folder: `runs/<time>-<model>`, `runs/NAME` for a name, or the path given."""
    if run is None:
        name = common_name(what)
        path, count = HOME / folder_name(name), 1
        while path.exists() and "TORCHELASTIC_RUN_ID" not in os.environ:
            count += 1
            path = HOME / folder_name(f"{name}-{count}")
        return path.name if count > 1 else name, path
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


def _unshared(
    name: str, path: Path, world: int, versions: Mapping[str, str]
) -> tuple[str, Path, int | None]:
    """The run, or one named after it where another training holds it, and what holds this one."""
    if world > 1:
        return name, path, None  # several ranks share a run
    wanted, count = (name, path), 1
    while True:
        try:
            held = hold(path, name, versions)
        except BlockingIOError:
            count += 1
            name, path = f"{wanted[0]}-{count}", wanted[1].with_name(f"{wanted[1].name}-{count}")
            continue
        if count > 1:
            log.warning(_HELD, wanted[1], path)
        return name, path, held


def _info(model: Module, optimizers: list[Optimizer]) -> dict[str, Any]:
    return {
        "versions": {"torch": str(torch.__version__)},
        "engines": cpu_engine() | device_engines(model.parameters()),
        "model": _kind(model),
        "optimizer": ", ".join(type(optimizer).__name__ for optimizer in optimizers),
    }


def _nothing(model: Module, include: Patterns, exclude: Patterns) -> str:
    if include is None and exclude is None:
        return f"{type(model).__name__} has no parameters to watch."
    some = ", ".join(n.name for n in named_parameters(model)[:5])
    return f"`include` and `exclude` leave no parameter to watch; there are {some} …"


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


def common_name(what: str) -> str:
    """A run's name: under torchrun the same on every rank, otherwise from the time."""
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic and elastic != "none":
        return f"{what}-{elastic}"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{what}"
