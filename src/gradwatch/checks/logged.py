"""What the names of logged numbers say: which are losses, which are held out, which should rise;
and of which losses the level says nothing, so that no check compares it with its start.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np

from gradwatch.run import Run
from gradwatch.stats.medians import Array


class LossLevel(StrEnum):
    """What the level of the logged loss says, as `watch(..., loss=…)` is told."""

    AUTO = "auto"
    ABSOLUTE = "absolute"
    RELATIVE = "relative"


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


RISING = _set(
    """reward rewards return returns accuracy acc score scores f1 auc auroc ap map bleu rouge iou
    miou dice r2 success psnr ssim top1 top5 precision recall win"""
)
"""Words in the names of numbers that are better when they rise."""
SHARES = RISING - _set("reward rewards return returns score scores psnr r2")
"""Of these the ones that end at one, or at a hundred per cent."""
FALLING = _set("loss losses error err perplexity ppl cost")
LOSS = _set("loss losses err nll cost objective dloss gloss")
"""Words in the names of what a training minimises."""
NO_LOSS = _set("nonfinite scale scaler count weight coef lr")
HELD_OUT = _set("val valid validation eval evaluation test dev heldout holdout")
REWARD = _set("reward rewards return returns")
DISCRIMINATOR = _set("d disc discr discriminator dis netd dloss critic")
GENERATOR = _set("g gen generator netg gloss")
ADVERSARIAL = DISCRIMINATOR | GENERATOR | _set("adv adversarial gan wasserstein energy")
VALUE = _set("critic q q1 q2 qf qf1 qf2 td value vf")
AGENT = (VALUE - _set("critic")) | _set("actor policy pi pg ppo surrogate")
PART = _set("kl kld entropy reg regularization regularizer penalty aux commit commitment vq")
"""Words of terms that are weighed against another loss, and may rise for its sake."""


def adaptive(run: Run) -> bool:
    """Whether the optimizer divides by the size of the gradients, as Adam does."""
    name = str(run.info.get("optimizer", "")).lower()
    return any(kind in name for kind in ("adam", "adagrad", "adadelta", "rmsprop", "adafactor"))


@cache
def words(name: str) -> frozenset[str]:
    """The words a name is made of, in lower case: `val/lossD` gives val, lossd, loss and d."""
    tokens = re.findall(r"[A-Za-z0-9]+", name)
    parts = [p for t in tokens for p in re.findall(r"[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+", t)]
    return frozenset(word.lower() for word in (*tokens, *parts))


def rises(name: str) -> bool:
    """Whether a number of this name is better when it rises: a reward, an accuracy."""
    return bool(words(name) & RISING) and not words(name) & FALLING


def is_loss(name: str) -> bool:
    """Whether a number of this name is a loss, of the training or held out."""
    return bool(words(name) & LOSS) and not words(name) & (NO_LOSS | REWARD)


def losses(names: Iterable[str]) -> list[str]:
    """The losses of the training; where one stands for all of them, that one alone."""
    found = [name for name in names if is_loss(name) and not words(name) & HELD_OUT]
    totals = [name for name in found if name == "loss"] or [
        name for name in found if words(name) <= _set("loss train training total step batch")
    ]
    return totals[:1] or found


def held_out_losses(names: Iterable[str]) -> list[str]:
    """The losses on data that is not trained on; `val_loss` first."""
    found = [name for name in names if is_loss(name) and words(name) & HELD_OUT]
    return sorted(found, key=lambda name: name != "val_loss")


def level_says_nothing(
    info: Mapping[str, Any], names: Iterable[str], name: str, values: Array
) -> str:
    """Why the level of a loss says nothing about the training; empty where it counts."""
    told = info.get("loss_level")
    if told == LossLevel.RELATIVE:
        return 'watch was told loss="relative": the level of this loss says nothing'
    if told == LossLevel.ABSOLUTE:
        return ""
    others = [other for other in names if other != name]
    beside = frozenset[str]().union(*(words(other) for other in others if is_loss(other)))
    rewards = [other for other in others if words(other) & REWARD and not is_loss(other)]
    if rewards:
        return f"the loss of a policy says nothing by its level; {rewards[0]} does"
    if (words(name) | beside) & AGENT:
        return "the level of a loss in reinforcement learning says nothing; log the reward too"
    if (words(name) | beside) & ADVERSARIAL:
        return "the level of a loss says nothing where two networks work against each other"
    if words(name) & PART:
        return f"{name} is weighed against another loss and may rise for its sake"
    if info.get("classes_are_samples") and _grew(values):
        return "samples are told from others of their batch: the loss grows with the batch"
    return "the loss goes back and forth through zero: its level says nothing" * hovers(values)


def _grew(values: Array) -> bool:
    """Whether three of four late values are above early ones."""
    early, late = values[: len(values) // 5 + 1], values[-(len(values) // 5 + 1) :]
    return float((late[:, None] > early[None, :]).mean()) >= 0.75


def hovers(values: Array, *, both: float = 0.1, clear: float = 5.0, least: int = 20) -> bool:
    """Whether a loss changes its sign again and again instead of falling through zero once."""
    if len(values) < least or not values.min() < 0 < values.max():
        return False
    halves = np.array_split(values, 2)
    share = min(min(float((h > 0).mean()), float((h < 0).mean())) for h in halves)
    late = halves[1]
    scatter = float(np.median(np.abs(late - np.median(late))))
    fell = float(np.median(values[:3]) - np.median(late))
    return share >= both and fell < clear * scatter
