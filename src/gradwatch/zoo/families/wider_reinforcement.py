"""Agents: losses without a level, targets that move, rewards that rise."""

from functools import partial

from gradwatch.zoo.changes import rate_times, set_field
from gradwatch.zoo.recipes.reinforcement import dqn, policy_gradient, td3
from gradwatch.zoo.training import family

actor_critic = partial(policy_gradient, critic=True)
ppo = partial(actor_critic, clipped=True)
ddpg = partial(td3, twin=False)
fit = partial(family, sick=False)

FAMILIES = (
    family("rl", "reinforce-flipped", "The policy's loss has the wrong sign.",
           partial(policy_gradient, sign=-1)),
    family("rl", "reinforce-rewards-in-thousands", "Rewards times 1000, not normalised.",
           partial(policy_gradient, normalise=False, reward=1000)),
    family("rl", "actor-critic-flipped", "The actor's part of the loss has the wrong sign.",
           partial(actor_critic, sign=-1)),
    family("rl", "ppo-too-fast", "A hundred times the learning rate.", ppo, rate_times(100)),
    family("rl", "ppo-detached", "The new log-probabilities carry no gradient.",
           partial(ppo, cut=True), culprits=["actor"]),
    family("rl", "dqn-no-target", "No target network, and far too large a rate.",
           partial(dqn, every=0), rate_times(100)),
    family("rl", "dqn-unbounded", "A discount above one.", partial(dqn, discount=1.5)),
    family("rl", "td3-flipped", "The actor goes down its critic.", partial(td3, sign=-1)),
    family("rl", "td3-rewards-in-thousands", "Rewards times 1000.", partial(td3, scale=1000)),
    family("rl", "ddpg-exploding-critic", "A discount far above one.", partial(ddpg, discount=2.0)),
    family("rl", "td3-silent-actor", "Nobody calls the step of the actor's optimizer.",
           td3, set_field(silent=frozenset({1})), culprits=["live.actor.*"]),
    fit("rl", "reinforce", "A sum over episodes that get longer.", policy_gradient),
    fit("rl", "actor-critic", "Two heads, one loss; it grows with the reward.", actor_critic),
    fit("rl", "ppo", "Four updates for each batch of episodes.", ppo),
    fit("rl", "dqn", "A target network, copied every six steps.", dqn),
    fit("rl", "dqn-double", "The online network chooses, the target network says the worth.",
        partial(dqn, double=True)),
    fit("rl", "dqn-soft", "A target network that follows slowly.", partial(dqn, soft=0.1)),
    fit("rl", "td3", "Two critics, an actor and their slow copies.", td3),
    fit("rl", "ddpg", "One critic and an actor whose loss falls without end.", ddpg),
)  # fmt: skip
