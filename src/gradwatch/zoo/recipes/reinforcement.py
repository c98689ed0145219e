"""Reinforcement learning: losses that rise while the reward rises, targets that move."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, smooth_l1_loss

from gradwatch.zoo.models import mlp
from gradwatch.zoo.recipes.odd import adam, copied, fixed, looped, single
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
            chances = torch.softmax(policy(torch.tensor(list(poles.values()))), 1).nan_to_num(0.5)
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
    reward: float = 1.0, normalise: bool = True, cut: bool = False,
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

    def loss() -> Tensor:
        if not clipped or len(before) % 4 == 0:
            seen[:], before[:] = [play(policy, 8 if clipped else 4, draw.data)], []
        played = seen[-1]
        returns = reward * played.returns
        if normalise:
            returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        logs = torch.log_softmax(policy(played.states), 1).gather(1, played.actions[:, None])[:, 0]
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

    return single(
        draw, model, loss, draw.rate(3e-3, 6e-3) * (1 if clipped else 2), 160,
        lambda: -play(policy, 6, fixed()).length, good=-60.0,
        numbers=lambda _: {"reward": seen[-1].length},
    )  # fmt: skip


# -- values: points on a line that shall come to its middle ---------------------------------------


class Walk:
    """Points between -1 and 1, moved by actions and rewarded near zero; the past is remembered."""

    def __init__(self, random: torch.Generator, stride: float, *, sparse: bool) -> None:
        self.random, self.stride, self.sparse = random, stride, sparse
        self.places = self.anywhere(16)
        places, actions = self.anywhere(256), self.anywhere(256).round()
        self.past = torch.cat([places, actions, *self.moved(places, actions)], 1)
        """Place, action, place afterwards and reward; at first of random actions."""

    def anywhere(self, count: int) -> Tensor:
        """Places drawn from the whole line."""
        return 2 * torch.rand(count, 1, generator=self.random) - 1

    def moved(self, places: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Where the points are afterwards, and their reward."""
        places = (places + self.stride * actions).clamp(-1, 1)
        return places, (places.abs() < 0.15).float() if self.sparse else 1 - places**2

    def explore(self, act: Callable[[Tensor], Tensor]) -> None:
        """Move on; one point in ten starts anew."""
        with torch.no_grad():
            actions = act(self.places)
        after, reward = self.moved(self.places, actions)
        self.past = torch.cat([self.past, torch.cat([self.places, actions, after, reward], 1)])
        self.past = self.past[-2000:]
        anew = torch.rand(after.shape, generator=self.random) < 0.1
        self.places = torch.where(anew, self.anywhere(len(after)), after)

    def batch(self) -> tuple[Tensor, ...]:
        """Some of the past, drawn at random."""
        rows = torch.randint(len(self.past), (64,), generator=self.random)
        return torch.split(self.past[rows], 1, 1)

    def loss_of(self, act: Callable[[Tensor], Tensor]) -> float:
        """Minus the mean reward on the way from fixed places."""
        places, total = torch.linspace(-1, 1, 21)[:, None], 0.0
        for _ in range(25):
            places, reward = self.moved(places, act(places))
            total += float(reward.mean())
        return -total / 25

    def reward(self, step: int) -> dict[str, float]:
        """What is logged."""
        return {"reward": float(self.past[-16:, 3].mean())}


FEW = torch.linspace(-1, 1, 9)[:, None]
"""Places at which it is seen whether a target moves."""


def dqn(
    draw: Draw, *, every: int = 6, double: bool = False, discount: float = 0.9, soft: float = 0.0
) -> Training:
    """Deep Q-learning with a memory and a target network, copied `every` so many steps.

    Without a target network where `every` is 0. With `soft` it follows by that share each step.
    """
    width = draw.pick((32, 48, 64))
    online = mlp([1, width, width, 3], nn.LeakyReLU)
    target = copy.deepcopy(online).requires_grad_(False)
    teacher = target if every else online
    walk = Walk(draw.data, 0.08, sparse=True)

    def greedy(places: Tensor) -> Tensor:
        return torch.argmax(online(places), 1, keepdim=True) - 1.0

    def curious(places: Tensor) -> Tensor:
        anything = torch.randint(3, places.shape, generator=draw.data) - 1.0
        rarely = torch.rand(places.shape, generator=draw.data) < 0.3
        return torch.where(rarely, anything, greedy(places))

    def loss() -> Tensor:
        walk.explore(curious)
        places, actions, after, reward = walk.batch()
        with torch.no_grad():
            ahead = teacher(after)
            best = (online(after) if double else ahead).argmax(1, keepdim=True)
            wanted = reward + discount * ahead.gather(1, best)
        return smooth_l1_loss(online(places).gather(1, actions.long() + 1), wanted)

    def after_step(step: int) -> None:
        if soft or (every and step % every == 0):
            copied(online, target, soft or 1.0)

    return looped(
        draw, nn.ModuleDict({"online": online, "target": target}),
        [Turn("q_loss", loss, adam(draw.rate(2e-3, 4e-3), online))], 260,
        lambda: walk.loss_of(greedy), good=-0.75, after=after_step, numbers=walk.reward,
        aim=lambda: teacher(FEW).detach(),
    )  # fmt: skip


def td3(
    draw: Draw, *, twin: bool = True, sign: float = 1.0, scale: float = 1.0, discount: float = 0.9
) -> Training:
    """An actor that climbs its critic: TD3 with `twin` critics, DDPG with one.

    `scale` is that of the rewards.
    """
    width, walk = draw.pick((32, 48)), Walk(draw.data, 0.2, sparse=False)
    critics = nn.ModuleList(mlp([2, width, width, 1], nn.SiLU) for _ in range(2 if twin else 1))
    live = nn.ModuleDict({"actor": mlp([1, width, 1], nn.SiLU), "critics": critics})
    slow = copy.deepcopy(live).requires_grad_(False)

    def act(networks: nn.ModuleDict, places: Tensor) -> Tensor:
        return torch.tanh(networks["actor"](places))

    def worth(networks: nn.ModuleDict, places: Tensor, actions: Tensor) -> Tensor:
        both = torch.cat([places, actions], 1)
        return torch.stack([critic(both) for critic in networks["critics"].children()])

    def curious(places: Tensor) -> Tensor:
        noise = 0.4 * torch.randn(places.shape, generator=draw.data)
        return (act(live, places) + noise).clamp(-1, 1)

    def critic_loss() -> Tensor:
        walk.explore(curious)
        places, actions, after, reward = walk.batch()
        wanted = scale * reward + discount * worth(slow, after, act(slow, after)).amin(0)
        guesses = worth(live, places, actions)
        return mse_loss(guesses, wanted.expand_as(guesses))

    def actor_loss() -> Tensor:
        places = walk.batch()[0]
        return -sign * worth(live, places, act(live, places))[0].mean()

    rate = draw.rate(2e-3, 4e-3)
    turns = [
        Turn("critic_loss", critic_loss, adam(rate, critics)),
        Turn("actor_loss", actor_loss, adam(rate / 2, live["actor"])),
    ]
    return looped(
        draw, nn.ModuleDict({"live": live, "target": slow}), turns, 260,
        lambda: walk.loss_of(partial(act, live)), good=-0.9, numbers=walk.reward,
        after=lambda _: copied(live, slow, 0.05), aim=lambda: act(slow, FEW),
    )  # fmt: skip
