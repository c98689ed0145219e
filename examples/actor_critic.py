"""An actor-critic under gradwatch; the program calls `get_action_and_value`, not `forward`.

    python examples/actor_critic.py

Added for gradwatch: the line with `gradwatch.watch` and the one with `watcher.log`. The level of a
policy's loss says nothing; where a reward is logged beside it, the reward is what should rise.
Since no forward of the whole agent is called, the input of its first layer stands for the inputs.
"""

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import gradwatch

STEPS, ENVIRONMENTS, HORIZON, DISCOUNT = 250, 32, 16, 0.9


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 3), nn.Linear(64, 1)

    def get_action_and_value(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        hidden = self.body(seen)
        policy = Categorical(logits=self.actor(hidden))
        action = policy.sample()
        value = self.critic(hidden).squeeze(-1)
        return action, policy.log_prob(action), policy.entropy(), value


def main() -> None:
    torch.manual_seed(0)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    with gradwatch.watch(agent, optimizer) as watcher:
        for _ in range(STEPS):
            place, goal = torch.rand(2, ENVIRONMENTS) * 2 - 1  # walk along a line to the goal
            steps, rewards = [], []
            for _ in range(HORIZON):
                steps.append(agent.get_action_and_value(torch.stack([place, goal], dim=1)))
                place = (place + 0.2 * (steps[-1][0] - 1)).clamp(-1, 1)  # left, stay, right
                rewards.append(-(place - goal).abs())
            _, chance, entropy, value = map(torch.stack, zip(*steps, strict=True))
            returns = [torch.zeros(ENVIRONMENTS)]
            for reward in reversed(rewards):
                returns.append(reward + DISCOUNT * returns[-1])
            advantage = torch.stack(returns[:0:-1]) - value
            loss = -(chance * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean()
            loss = loss - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log(loss=loss, reward=torch.stack(rewards).mean())
    print(f"reward of the last step: {torch.stack(rewards).mean():.3f}")


if __name__ == "__main__":
    main()
