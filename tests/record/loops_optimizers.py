"""Loops with several, changing, nested or foreign optimizers."""

from typing import Any

import torch
from tests.record.loops import STEPS, Start, batch, loop, loss_of, mlp, step_with
from torch import Tensor, nn
from torch.nn import functional as F


def _pair() -> nn.ModuleDict:
    torch.manual_seed(2)
    return nn.ModuleDict(
        {
            "g": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)),
            "d": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)),
        }
    )


@loop()
def adversarial_pair(start: Start) -> None:
    pair = _pair()
    for_d = torch.optim.Adam(pair["d"].parameters(), 0.01)
    for_g = torch.optim.SGD(pair["g"].parameters(), 0.01)
    _, truth = start(pair, for_d, for_g)
    for step in range(STEPS):
        x, _ = batch(step)
        for_d.zero_grad()
        made = pair["g"](x)
        (pair["d"](made.detach()).sigmoid().mean() - pair["d"](x).sigmoid().mean()).backward()
        truth.raw("d")
        step_with(truth, for_d, "d")
        for_g.zero_grad()
        (-pair["d"](made).sigmoid().mean()).backward()  # reaches D too, as everywhere
        truth.raw("g")
        step_with(truth, for_g, "g")
        truth.made(backwards=None)


@loop()
def two_watched_models(start: Start) -> None:
    first, second = mlp(), mlp()
    one = torch.optim.SGD(first.parameters(), 0.1)
    two = torch.optim.Adam(second.parameters(), 0.01)
    _, truth_one = start(first, one)
    _, truth_two = start(second, two)
    for step in range(STEPS):
        for model, optimizer, truth in ((first, one, truth_one), (second, two, truth_two)):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            truth.raw()
            step_with(truth, optimizer)
            truth.made()


class Sam(torch.optim.Optimizer):
    """Climbs to the worst point nearby, takes the gradient there, and steps from where it was."""

    def __init__(self, parameters: Any, rho: float = 0.05) -> None:
        super().__init__(parameters, {"rho": rho})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        grads = [p.grad for g in self.param_groups for p in g["params"]]
        norm = torch.stack([g.norm() for g in grads]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.detach().clone()
                p.add_(p.grad, alpha=float(0.05 / norm))
        self.zero_grad()

    @torch.no_grad()
    def climb_down(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])

    def second_step(self) -> None:
        self.climb_down()
        self.inner.step()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.enable_grad():
            self.first_step()
            closure()
        self.second_step()


@loop()
def sharpness_aware_by_hand(start: Start) -> None:
    model = mlp()
    sam = Sam(model.parameters())
    _, truth = start(model, sam)
    for step in range(STEPS):
        sam.zero_grad()
        loss_of(model, step).backward()
        sam.first_step()
        loss_of(model, step).backward()
        truth.raw()
        sam.climb_down()
        truth.before()
        sam.inner.step()
        truth.after()
        truth.made(backwards=None)


@loop()
def sharpness_aware_closure(start: Start) -> None:
    model = mlp()
    sam = Sam(model.parameters())
    _, truth = start(model, sam)
    for step in range(STEPS):
        sam.zero_grad()
        loss_of(model, step).backward()
        truth.before()

        def closure(step: int = step) -> None:
            loss_of(model, step).backward()
            truth.raw()

        sam.step(closure)
        truth.after()
        truth.made(backwards=None)


@loop()
def optimizer_replaced(start: Start) -> None:
    model = mlp()
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        if step == 3:
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(backwards=None)


@loop()
def optimizer_made_later(start: Start) -> None:
    model = mlp()
    _, truth = start(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(backwards=None)


class Prepared:
    """A wrapper as accelerate makes them: no torch optimizer, but it keeps one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


@loop()
def wrapped_optimizer(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, Prepared(optimizer))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()


@loop()
def group_added(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        if step == 2:
            optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.05})
        model.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(backwards=None)


@loop()
def stepped_in_backward(start: Start) -> None:
    model = mlp()
    optimizers: dict[Tensor, torch.optim.Optimizer]
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    _, truth = start(model, *optimizers.values())

    def step_one(parameter: Tensor) -> None:
        truth.raw(names[parameter])
        step_with(truth, optimizers[parameter], names[parameter])
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step_one)
    for step in range(STEPS):
        loss_of(model, step).backward()
        truth.made(backwards=None)


@loop()
def no_torch_optimizer(start: Start) -> None:
    model = mlp()
    watcher, truth = start(model)
    for step in range(STEPS):
        model.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        truth.before()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
        truth.after()
        watcher.step()
        truth.made(stale=False)


@loop()
def steps_told_as_well(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watcher, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        watcher.step()
        truth.made()


@loop()
def compiled_step(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    compiled = torch.compile(optimizer.step, backend="eager")
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        truth.before()
        compiled()
        truth.after()
        truth.made()


@loop()
def rate_as_a_tensor(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), torch.tensor(0.01), capturable=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(batch(step)[0]), torch.zeros(16, 3)).backward()
        truth.raw()
        step_with(truth, optimizer)
        schedule.step()
        truth.made()
