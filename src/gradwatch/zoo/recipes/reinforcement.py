"""Reinforcement learning: losses that rise while the reward rises, targets that move."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, smooth_l1_loss

from gradwatch.zoo.models import mlp
from gradwatch.zoo.recipes.odd import adam, copied, fixed, looped
from gradwatch.zoo.training import Draw, Training, Turn

LIMIT = 100
"""Steps after which an episode of the pole ends."""
Pole = tuple[float, float, float, float]


def pushed(pole: Pole, right: int) -> Pole:
    """The pole of CartPole after a push of 0.02 s: place, speed, angle, turning."""
    place, speed, angle, turning = pole
    force, sine, cosine = (10.0 if right else -10.0), math.sin(angle), math.cos(angle)
    push = (force + 0.05 * turning**2 * sine) / 1.1
    bend = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    drive = push - 0.05 * bend * cosine / 1.1
    return (place + 0.02 * speed, speed + 0.02 * drive, angle + 0.02 * turning,
            turning + 0.02 * bend)  # fmt: skip


@dataclass(frozen=True)
class Played:
    """Episodes one after the other: states, actions and, for each moment, the reward to come."""

    states: Tensor
    actions: Tensor
    returns: Tensor
    length: float
    """Mean over the episodes."""


def play(policy: Callable[[Tensor], Tensor], count: int, random: torch.Generator) -> Played:
    """Balance some poles at once, each until it falls or the limit is reached."""
    starts = (0.1 * torch.rand(count, 4, generator=random) - 0.05).tolist()
    poles: dict[int, Pole] = {i: (a, b, c, d) for i, (a, b, c, d) in enumerate(starts)}
    told: list[list[tuple[Pole, int]]] = [[] for _ in range(count)]
    for _ in range(LIMIT):
        if not poles:
            break
        with torch.no_grad():
            chances = torch.softmax(policy(torch.tensor(list(poles.values()))), 1)
        actions = torch.multinomial(chances, 1, generator=random)[:, 0].tolist()
        for (index, pole), action in zip(list(poles.items()), actions, strict=True):
            told[index].append((pole, action))
            poles[index] = pushed(pole, action)
            if abs(poles[index][0]) > 2.4 or abs(poles[index][2]) > 0.21:
                del poles[index]
    to_come = [list(accumulate([1.0] * len(e), lambda a, b: 0.98 * a + b))[::-1] for e in told]
    moments = [moment for episode in told for moment in episode]
    return Played(
        torch.tensor([pole for pole, _ in moments]),
        torch.tensor([action for _, action in moments]),
        torch.tensor([value for episode in to_come for value in episode]),
        len(moments) / count,
    )


def policy_gradient(
    draw: Draw, *, critic: bool = False, clipped: bool = False, sign: float = 1.0,
    reward: float = 1.0, faster: float = 1.0, normalise: bool = True, cut: bool = False,
) -> Training:  # fmt: skip
    """REINFORCE on CartPole; with `critic` actor-critic; `clipped` as well is PPO.

    The loss of the first two is a sum over episodes, so it grows with their length.
    """
    width = draw.pick((32, 48, 64))
    body = mlp([4, width, width] if critic else [4, width], nn.Tanh)
    model = nn.ModuleDict({"body": nn.Sequential(*body, nn.Tanh()), "actor": nn.Linear(width, 2)})
    if critic:
        model["critic"] = nn.Linear(width, 1)
    seen: list[Played] = []
    """The last episodes."""
    before: list[Tensor] = []
    """What the policy said of them when they were played, for each update since."""

    def policy(states: Tensor) -> Tensor:
        out: Tensor = model["actor"](model["body"](states))
        return out

    def chosen(played: Played) -> Tensor:
        every = torch.log_softmax(policy(played.states), 1)
        return every.gather(1, played.actions[:, None])[:, 0]

    def loss() -> Tensor:
        if not clipped or len(before) % 4 == 0:
            seen[:], before[:] = [play(policy, 8 if clipped else 4, draw.data)], []
        played = seen[-1]
        returns = reward * played.returns
        if normalise:
            returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        logs = chosen(played)
        if cut:
            logs = logs.detach()
        worth, values = torch.zeros(()), torch.zeros(())
        if critic:
            values = model["critic"](model["body"](played.states))[:, 0]
            worth = (mse_loss if clipped else smooth_l1_loss)(values, returns, reduction="sum")
        gain = returns - values.detach()
        if not clipped:
            return (worth - sign * (logs * gain).sum()) / 4
        before.append(before[-1] if before else logs.detach())
        ratio = torch.exp(logs - before[-1])
        least = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        return 0.5 * worth / len(gain) - sign * least.mean()

    def outcome() -> float:
        return -play(policy, 6, fixed()).length

    rate = draw.rate(6e-3, 1.2e-2) if not clipped else draw.rate(3e-3, 6e-3)
    turn = Turn("loss", loss, adam(faster * rate, model))
    return looped(
        draw, model, [turn], 160, outcome, good=-60.0, numbers=lambda _: {"reward": seen[-1].length}
    )


# -- values: a point on a line that shall reach the middle ---------------------------------------


@dataclass
class Line:
    """Points between -1 and 1 that an action moves; the reward is for being near zero."""

    sparse: bool
    """Whether only the place itself is rewarded, or nearness as well."""
    random: torch.Generator

    def start(self, count: int) -> Tensor:
        """Places anywhere on the line."""
        return 2 * torch.rand(count, 1, generator=self.random) - 1

    def moved(self, places: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Where the points are afterwards, and their reward."""
        places = (places + (0.08 if self.sparse else 0.2) * actions).clamp(-1, 1)
        reward = (places.abs() < 0.15).float() if self.sparse else 1 - places**2
        return places, reward


class Memory:
    """Past transitions; the oldest are forgotten."""

    def __init__(self, random: torch.Generator) -> None:
        self._rows = torch.zeros(0, 4)
        self._random = random

    def add(self, places: Tensor, actions: Tensor, reward: Tensor, after: Tensor) -> None:
        """Keep some more."""
        self._rows = torch.cat([self._rows, torch.cat([places, actions, reward, after], 1)])[-2000:]

    def batch(self, size: int) -> tuple[Tensor, ...]:
        """Places, actions, rewards and places afterwards, drawn at random."""
        rows = torch.randint(len(self._rows), (size,), generator=self._random)
        return torch.split(self._rows[rows], 1, 1)


def _earned(line: Line, act: Callable[[Tensor], Tensor], moments: int = 25) -> float:
    """Mean reward per moment from fixed places."""
    places, total = torch.linspace(-1, 1, 21)[:, None], 0.0
    for _ in range(moments):
        places, reward = line.moved(places, act(places))
        total += float(reward.mean())
    return total / moments


def dqn(
    draw: Draw, *, every: int = 6, double: bool = False, faster: float = 1.0,
    reward: float = 1.0, discount: float = 0.9, soft: float = 0.0,
) -> Training:  # fmt: skip
    """Deep Q-learning with a memory and a target network, copied `every` so many steps.

    Without a target network where `every` is 0, never copied where it is negative.
    """
    width = draw.pick((32, 48, 64))
    online = mlp([1, width, width, 3], nn.LeakyReLU)
    target = copy.deepcopy(online).requires_grad_(False)
    model = nn.ModuleDict({"online": online, "target": target})
    line = Line(True, draw.data)
    memory, recent = Memory(draw.data), [line.start(16)]

    def explore() -> None:
        places = recent[-1]
        with torch.no_grad():
            best = online(places).argmax(1, keepdim=True)
        anything = torch.randint(3, best.shape, generator=draw.data)
        chosen = torch.where(torch.rand(best.shape, generator=draw.data) < 0.3, anything, best)
        after, earned = line.moved(places, chosen.float() - 1)
        memory.add(places, chosen.float(), earned[:, :1], after)
        away = torch.rand(after.shape, generator=draw.data) < 0.1
        recent[0] = torch.where(away, line.start(len(after)), after)

    def loss() -> Tensor:
        explore()
        places, actions, earned, after = memory.batch(64)
        with torch.no_grad():
            ahead = (target if every else online)(after)
            best = online(after).argmax(1, keepdim=True) if double else ahead.argmax(1, True)
            wanted = reward * earned + discount * ahead.gather(1, best)
        return smooth_l1_loss(online(places).gather(1, actions.long()), wanted)

    def after_step(step: int) -> None:
        if soft:
            copied(online, target, soft)
        elif every > 0 and step % every == 0:
            copied(online, target)

    turn = Turn("q_loss", loss, adam(faster * draw.rate(2e-3, 4e-3), online))
    return looped(
        draw, model, [turn], 260,
        lambda: -_earned(line, lambda places: online(places).argmax(1, keepdim=True).float() - 1),
        good=-0.75, after=after_step,
        aim=lambda: (target if every else online)(torch.linspace(-1, 1, 9)[:, None]).detach(),
        numbers=lambda _: {"reward": _mean_reward(line, recent[-1])},
    )  # fmt: skip


def _mean_reward(line: Line, places: Tensor) -> float:
    return float(line.moved(places, torch.zeros_like(places))[1].mean())


def td3(
    draw: Draw, *, twin: bool = True, sign: float = 1.0, reward: float = 1.0,
    discount: float = 0.9, faster: float = 1.0,
) -> Training:  # fmt: skip
    """An actor that climbs its critic: TD3 with `twin` critics, DDPG with one."""
    width = draw.pick((32, 48))
    actor = mlp([1, width, 1], nn.SiLU)
    critics = nn.ModuleList(mlp([2, width, width, 1], nn.SiLU) for _ in range(2 if twin else 1))
    live = nn.ModuleDict({"actor": actor, "critics": critics})
    slow = copy.deepcopy(live).requires_grad_(False)
    model = nn.ModuleDict({"live": live, "target": slow})
    line, memory = Line(False, draw.data), Memory(draw.data)
    recent = [line.start(16)]
    places, actions = line.start(256), line.start(256)  # before it learns, it acts at random
    memory.add(places, actions, *line.moved(places, actions)[::-1])

    def worth(critics: nn.Module, places: Tensor, actions: Tensor) -> Tensor:
        return torch.stack([q(torch.cat([places, actions], 1)) for q in critics.children()])

    def explore() -> None:
        places = recent[-1]
        with torch.no_grad():
            actions = torch.tanh(actor(places))
        noise = 0.4 * torch.randn(actions.shape, generator=draw.data)
        actions = (actions + noise).clamp(-1, 1)
        after, earned = line.moved(places, actions)
        memory.add(places, actions, earned, after)
        away = torch.rand(after.shape, generator=draw.data) < 0.1
        recent[0] = torch.where(away, line.start(len(after)), after)

    def critic_loss() -> Tensor:
        explore()
        places, actions, earned, after = memory.batch(64)
        with torch.no_grad():
            best = torch.tanh(slow["actor"](after))
            ahead = worth(slow["critics"], after, best).amin(0)
            wanted = reward * earned + discount * ahead
        guesses = worth(critics, places, actions)
        return mse_loss(guesses, wanted.expand_as(guesses))

    def actor_loss() -> Tensor:
        places = memory.batch(64)[0]
        return -sign * worth(critics, places, torch.tanh(actor(places)))[0].mean()

    rate = draw.rate(2e-3, 4e-3)
    turns = [
        Turn("critic_loss", critic_loss, adam(faster * rate, critics)),
        Turn("actor_loss", actor_loss, adam(rate / 2, actor)),
    ]
    return looped(
        draw, model, turns, 260, lambda: -_earned(line, lambda places: torch.tanh(actor(places))),
        good=-0.9, after=lambda _: copied(live, slow, 0.05),
        aim=lambda: slow["actor"](torch.linspace(-1, 1, 9)[:, None]).detach(),
        numbers=lambda _: {"reward": _mean_reward(line, recent[-1])},
    )  # fmt: skip
