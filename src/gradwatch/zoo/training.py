"""One training: a model, a task, an optimizer and the oddities of its loop; families make them."""

import fnmatch
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from gradwatch.zoo.models import Act, mlp, name_of
from gradwatch.zoo.tasks import Task

Alter = Callable[[int, Any, Any], tuple[Any, Any]]
"""Changes a batch: the step (-1 for the fixed one of the witness), inputs, targets."""


@dataclass(frozen=True)
class Turn:
    """One loss of a step and who follows it: a GAN has two turns a step, most trainings one."""

    name: str
    """What the loss is logged as."""
    loss: Callable[[], Tensor]
    """Takes a batch and computes the loss."""
    optimizer: Optimizer
    also: tuple[Optimizer, ...] = ()
    """Further optimizers that step at the same time."""

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """All that step in this turn."""
        return (self.optimizer, *self.also)


class Observer(Protocol):
    """Whoever watches the loop: the labeller, the recorder."""

    def begin_step(self, step: int, turn: Turn) -> None:
        """Before the turn's first backward pass."""

    def before_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        """After backward, before clipping and the update."""

    def after_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        """After the update."""

    def end_step(self, step: int, validation: float | None, numbers: Mapping[str, float]) -> None:
        """After all turns, with what else was logged."""


@dataclass
class Training:
    """Everything `train` needs. Most fields say how this loop differs from the plainest one."""

    model: nn.Module
    task: Task
    optimizer: torch.optim.Optimizer
    steps: int
    batch: int
    culprits: tuple[str, ...] = ()
    """Layers in which the fault was planted; empty when it is in no layer."""
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    schedule: Callable[[int], float] | None = None
    """Factor of the learning rate at each step."""
    clip: float | None = None
    zero: bool = True
    accumulate: int = 1
    alter: Alter | None = None
    dataset: tuple[Any, Tensor] | None = None
    """A fixed training set, when batches shall repeat."""
    shuffle: bool = True
    """Random rows of the fixed set; otherwise one batch after the other, in the set's order."""
    repeat: int = 1
    """Each batch is given so many times."""
    validate_every: int = 0
    train_mode: bool = True
    validate_in_training_mode: bool = False
    stay_in_evaluation: bool = False
    """After the first validation nobody calls `train()` again."""
    autocast: bool = False
    build: Callable[[nn.Module], Optimizer] | None = None
    """Makes the optimizer anew, when a change has altered the model."""
    also: tuple[Optimizer, ...] = ()
    """Further optimizers of the plain loop, over other parts of the model."""
    silent: frozenset[int] = frozenset()
    """Those of `optimizers` whose `step()` is never called."""
    turns: tuple[Turn, ...] = ()
    """Several losses per step; empty for the plain loop."""
    numbers: Callable[[int], Mapping[str, float]] | None = None
    """What is logged besides at each step: a reward, an accuracy."""
    after: Callable[[int], None] | None = None
    """Called at the end of each step (target networks, moving averages)."""
    moving: list[bool] = field(default_factory=list)
    """Whether what the loss aims at changed, step by step (bootstrapped targets)."""
    level: bool = True
    """Whether the level of the loss says how far the training is (not so in GANs)."""
    outcome: Callable[[], float] | None = None
    """In place of the loss on a clean batch: falls from the task's chance to its floor."""
    log: Callable[..., None] | None = None
    """Where the losses go, as `watcher.log` takes them."""
    data: torch.Generator = field(default_factory=torch.Generator)
    current: list[tuple[Any, Tensor]] = field(default_factory=list)
    """The batches of this step, for the witness."""

    def __post_init__(self) -> None:
        self._batches = self.batches()
        self._step = 0

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """All of them, in the order of the turns."""
        every = [o for turn in self.turns for o in turn.optimizers]
        return tuple(dict.fromkeys(every or [self.optimizer, *self.also]))

    def batches(self) -> Iterator[tuple[Any, Tensor]]:
        """Fresh samples of the task, or rows of the fixed training set, without end."""
        at = 0
        while True:
            if self.dataset is None:
                taken = self.task.sample(self.batch, self.data)
            else:
                inputs, targets = self.dataset
                if self.shuffle:
                    rows = torch.randint(len(targets), (self.batch,), generator=self.data)
                else:
                    rows = torch.arange(at, at + self.batch) % len(targets)
                    at += self.batch
                taken = _rows(inputs, rows), targets[rows]
            for _ in range(self.repeat):
                yield taken

    def take(self) -> tuple[Any, Tensor]:
        """The next batch, altered as the recipe wants it."""
        inputs, targets = next(self._batches)
        if self.alter is not None:
            inputs, targets = self.alter(self._step, inputs, targets)
        self.current.append((inputs, targets))
        return inputs, targets

    def loss_of(self, inputs: Any, targets: Tensor) -> Tensor:
        """The loss of one batch, computed in bfloat16 where the recipe uses autocast."""
        measure = self.loss or self.task.loss
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            outputs = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
        if outputs.dtype is torch.bfloat16:
            outputs = outputs.float()
        return measure(outputs, targets)

    def begin(self, step: int) -> None:
        """Forget the batches of the step before."""
        self._step = step
        self.current.clear()


def _rows(inputs: Any, rows: Tensor) -> Any:
    if isinstance(inputs, tuple):
        return tuple(part[rows] for part in inputs)
    return inputs[rows]


def train(training: Training, observers: Sequence[Observer]) -> None:
    """Run the loop to its end; observers see every step."""
    training.model.train(training.train_mode)
    plain = Turn("loss", lambda: training.loss_of(*training.take()), training.optimizer,
                 training.also)  # fmt: skip
    groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    for step in range(training.steps):
        if training.schedule is not None:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * training.schedule(step)
        training.begin(step)
        for turn in training.turns or (plain,):
            _take_turn(training, step, turn, observers)
        if training.after is not None:
            training.after(step)
        checked = None
        if training.validate_every and step % training.validate_every == 0:
            checked = _validation(training)
        numbers = {} if training.numbers is None else training.numbers(step)
        for observer in observers:
            observer.end_step(step, checked, numbers)
        if training.log is not None and (numbers or checked is not None):
            training.log(**numbers, **({} if checked is None else {"val_loss": checked}))


def _take_turn(training: Training, step: int, turn: Turn, observers: Sequence[Observer]) -> None:
    """Zero, forward, backward, clip, update."""
    if training.zero:
        for optimizer in turn.optimizers:
            optimizer.zero_grad()
    for observer in observers:
        observer.begin_step(step, turn)
    for _ in range(training.accumulate):
        loss = turn.loss()
        torch.autograd.backward(loss / training.accumulate)
    if training.log is not None:
        training.log(**{turn.name: loss})
    for observer in observers:
        observer.before_step(step, loss.detach(), turn)
    if training.clip is not None:
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.clip)
    for optimizer in turn.optimizers:
        if training.optimizers.index(optimizer) not in training.silent:
            optimizer.step()
    for observer in observers:
        observer.after_step(step, loss.detach(), turn)


def _validation(training: Training) -> float:
    inputs, targets = training.task.sample(128, torch.Generator().manual_seed(99))
    mode = training.model.training
    training.model.train(training.validate_in_training_mode)
    with torch.no_grad():
        value = float(training.loss_of(inputs, targets))
    training.model.train(mode and not training.stay_in_evaluation)
    return value


class Length(Enum):
    """How long the trainings of a family run: as the recipe says, or so many steps."""

    DEFAULT = "default"
    SHORT = "short"
    LONG = "long"

    def steps(self, default: int) -> int:
        """Steps of a training whose recipe says `default`."""
        return {Length.DEFAULT: default, Length.SHORT: 60, Length.LONG: 5000}[self]


T = TypeVar("T")
Model = TypeVar("Model", bound=nn.Module)


class Draw:
    """Widths, depths, rates and batches of one trial, and torch generators that follow the seed."""

    def __init__(self, seed: int, length: Length = Length.DEFAULT) -> None:
        self._random = random.Random(seed)
        self.steps = length.steps
        """How many steps a training runs whose recipe says so many."""
        self.data = torch.Generator().manual_seed(seed + 1)
        """For batches, apart from the one that initialises the weights."""

    def integer(self, low: int, high: int) -> int:
        """Uniform, both ends included."""
        return self._random.randint(low, high)

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices, each equally likely."""
        return self._random.choice(choices)

    def rate(self, low: float, high: float) -> float:
        """Uniform in the logarithm."""
        return math.exp(self._random.uniform(math.log(low), math.log(high)))

    @property
    def width(self) -> int:
        """Units of a hidden layer; every read draws another."""
        return self.pick((16, 24, 32, 48, 64))

    @property
    def batch(self) -> int:
        """Samples in a batch; every read draws another."""
        return self.pick((16, 32, 48, 64))


@dataclass(frozen=True)
class Setup(Generic[Model]):
    """A model and its task, which a recipe may spoil before it is trained."""

    draw: Draw
    task: Task
    model: Model
    batch: int | None = None
    """Samples in a batch; drawn when the training is made where None."""

    def train(
        self,
        optimizer: Callable[..., Optimizer],
        rate: float,
        steps: int,
        culprits: Iterable[str | nn.Module] = (),
        *,
        given: Sequence[Any] | None = None,
        batch: int | None = None,
        **loop: Any,
    ) -> Training:
        """The training: `given` is what the optimizer gets, `loop` what is odd about the loop.

        The size of the batch is the last thing to be drawn: a seed must always give the same trial.
        """
        return Training(
            self.model,
            self.task,
            optimizer(self.model.parameters() if given is None else given, rate),
            self.draw.steps(steps),
            batch or self.batch or self.draw.batch,
            tuple(c if isinstance(c, str) else name_of(self.model, c) for c in culprits),
            **loop,
        )


MOMENTUM = partial(SGD, momentum=0.9)


def perceptron(draw: Draw, task: Task, depth: int = 2, act: Act = nn.ReLU,
               norm: Callable[[int], nn.Module] | None = None,
               last: nn.Module | None = None) -> Setup[nn.Sequential]:  # fmt: skip
    """A multilayer perceptron with `depth` hidden layers of one drawn width."""
    sizes = [task.inputs, *[draw.width] * depth, task.outputs]
    return Setup(draw, task, mlp(sizes, act, norm, last))


def one_step(at: int, factor: float) -> Callable[[int], float]:
    """A schedule: the learning rate is `factor` times its size on a single step."""
    return lambda step: factor if step == at else 1.0


Make = Callable[[Draw], Training]
"""A recipe: makes a training, usually a healthy one after somebody's public program."""
Change = Callable[[Training, Draw], None]
"""What a family does to the training of its recipe."""


@dataclass(frozen=True)
class ZooFamily:
    """`make` plants the fault; what a trial really has is measured from its tensors."""

    name: str
    """kind/what, as `gradwatch zoo run` takes it."""
    about: str
    sick: bool
    make: Make

    @property
    def kind(self) -> str:
        """The kind of model: mlp, cnn, lora."""
        return self.name.partition("/")[0]


def family(kind: str, what: str, about: str, recipe: Make, *changes: Change, sick: bool = True,
           culprits: Sequence[str] = ()) -> ZooFamily:  # fmt: skip
    """A recipe and what is changed in it; `culprits` are patterns of layers' names."""

    def make(draw: Draw) -> Training:
        training = recipe(draw)
        for change in changes:
            change(training, draw)
        if training.build is not None:
            training.optimizer = training.build(training.model)
        if culprits:
            names = [name for name, _ in training.model.named_modules()]
            training.culprits = tuple(n for c in culprits for n in fnmatch.filter(names, c))
        return training

    return ZooFamily(f"{kind}/{what}", about, sick, make)


def _of_functions(kind: str, makers: Iterable[Make], is_sick: bool) -> tuple[ZooFamily, ...]:
    """Families written as functions: their names and docstrings say what they are."""
    return tuple(
        ZooFamily(
            f"{kind}/{make.__name__.replace('_', '-')}",
            (make.__doc__ or "").strip().partition("\n")[0],
            is_sick,
            make,
        )
        for make in makers
    )


def sick(kind: str, *makers: Make) -> tuple[ZooFamily, ...]:
    """Families whose makers plant a fault."""
    return _of_functions(kind, makers, True)


def healthy(kind: str, *makers: Make) -> tuple[ZooFamily, ...]:
    """Families that train well, some of them in ways that look like a fault."""
    return _of_functions(kind, makers, False)
