"""What to look at first: layers, groups of layers that share a trouble, the network as a whole.

Urgency comes before score, and what the diagnosis names first stands first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np

from gradwatch.analysis.gradients.advice import Reason, RecommendedAction, actions
from gradwatch.analysis.gradients.layer import (
    HEALTH,
    LayerDetail,
    LayerHealth,
    LayerHealthMetrics,
    potentials,
)
from gradwatch.analysis.layers import LayerSeries
from gradwatch.finding import Severity
from gradwatch.result import Result, missing
from gradwatch.run import block_of

HEALTH_WEIGHT, STABILITY_WEIGHT, DISTANCE_WEIGHT, SHARE_WEIGHT = 0.4, 0.3, 0.2, 0.1
VERY_UNSTABLE = 0.3
MOST_OF = 0.5
"""A trouble that more than this share of a block's (or all) layers have is the block's."""
NETWORK = "network"
FEWEST_LAYERS = 4
"""Layers a network must have before "most of them" means the network."""


class OptimizationTarget(StrEnum):
    """What a priority is about."""

    INDIVIDUAL_LAYER = "IndividualLayer"
    LAYER_GROUP = "LayerGroup"
    NETWORK_LEVEL = "NetworkLevel"


class Urgency(StrEnum):
    """How soon a layer should be looked at."""

    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


_ORDER = list(Urgency)
_BADNESS = {
    LayerHealth.CRITICAL: 1.0,
    LayerHealth.WARNING: 0.7,
    LayerHealth.UNKNOWN: 0.5,
    LayerHealth.HEALTHY: 0.0,
}


class OptimizationPriority(Result):
    """How early a target should be looked at, and for which reasons."""

    target_name: str
    target_type: OptimizationTarget
    priority_score: float
    urgency_level: Urgency
    optimization_potential: float | None
    reasons: tuple[str, ...]
    recommended_actions: tuple[RecommendedAction, ...]
    layers: tuple[str, ...]
    """The layers it is about; empty for the network as a whole."""


Ranked = tuple[tuple[float, ...], OptimizationPriority]
"""A priority behind its sorting key."""


def priorities(
    series: LayerSeries,
    recent: LayerSeries,
    layers: Sequence[LayerDetail],
    because: Sequence[Reason],
    first_named: str | None,
) -> tuple[OptimizationPriority, ...]:
    """Most urgent first; of equal urgency what the diagnosis names earlier, then by score.

    `first_named` is the layer the diagnosis names first: it is never less urgent than another.
    """
    squares = series.squares / (float(series.squares.sum()) or 1.0)
    shares = dict(zip(series.names, squares.tolist(), strict=True))
    away = dict(zip(series.names, potentials(recent).tolist(), strict=True))
    metrics = {layer.layer_name: layer.health_metrics for layer in layers}
    by_layer = reasons_by_layer(because)
    ranked = [
        _layer(
            name,
            metrics.get(name),
            by_layer.get(name, ()),
            shares.get(name, 0.0),
            away.get(name, np.nan),
            named_first=name == first_named,
        )
        # A finding may name layers without parameters: an activation, a norm without gains.
        for name in dict.fromkeys([*shares, *by_layer, *filter(None, [first_named])])
    ]
    by_name = {item.target_name: item for _, item in ranked if item.target_name in shares}
    ranked += _groups(by_name, because, shares)
    return tuple(item for _, item in sorted(ranked, key=lambda pair: pair[0]))


def reasons_by_layer(because: Sequence[Reason]) -> dict[str, list[Reason]]:
    """Layer → the findings that name it, roots before what follows from them."""
    by_layer: dict[str, list[Reason]] = {}
    for reason in because:
        for layer in reason.finding.layers:
            by_layer.setdefault(layer, []).append(reason)
    return by_layer


# -- one layer -------------------------------------------------------------------------------------


def _layer(
    name: str,
    metrics: LayerHealthMetrics | None,
    because: Sequence[Reason],
    share: float,
    distance: float,
    *,
    named_first: bool,
) -> Ranked:
    health = metrics.overall_health if metrics else _gravest(because)
    stability = metrics.gradient_stability if metrics else None
    potential = None if np.isnan(distance) else distance
    item = OptimizationPriority(
        name,
        OptimizationTarget.INDIVIDUAL_LAYER,
        score(health, stability, potential, share),
        urgency(health, stability, named_first=named_first),
        missing("the layer has no gradient to compare") if potential is None else potential,
        metrics.risk_factors if metrics else _words(because),
        actions(because, share) if because else (),
        (name,),
    )
    root = min((reason.rank for reason in because), default=1 << 30)
    follows = all(reason.follows for reason in because)
    return _key(item, -1 if named_first else root, 2 + follows), item


def _gravest(because: Sequence[Reason]) -> LayerHealth:
    severity = max((reason.finding.severity for reason in because), default=Severity.INFO)
    return HEALTH.get(severity, LayerHealth.UNKNOWN)


def _words(because: Sequence[Reason]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason.word for reason in because))


def _key(item: OptimizationPriority, rank: int, kind: int) -> tuple[float, ...]:
    return (-_ORDER.index(item.urgency_level), rank, kind, -item.priority_score)


def score(
    health: LayerHealth, stability: float | None, potential: float | None, share: float
) -> float:
    """Between 0 and 1, and so is every term.

    What is not known of a sick layer counts as the worst it can be, of another as the middle: a
    dead layer must not come last because nothing else can be measured of it.
    """
    sick = health in (LayerHealth.CRITICAL, LayerHealth.WARNING)
    unknown = 1.0 if sick else 0.5
    return (
        HEALTH_WEIGHT * _BADNESS[health]
        + STABILITY_WEIGHT * (unknown if stability is None else 1 - stability)
        + DISTANCE_WEIGHT * (unknown if potential is None else potential)
        + SHARE_WEIGHT * share * (health is not LayerHealth.HEALTHY)
    )


def urgency(
    health: LayerHealth, stability: float | None = None, *, named_first: bool = False
) -> Urgency:
    """By health; what is unsteady, or named first by the diagnosis, is more urgent."""
    if health is LayerHealth.CRITICAL:
        return Urgency.CRITICAL
    shaky = stability is not None and stability < VERY_UNSTABLE
    if health is LayerHealth.WARNING:
        return Urgency.HIGH if shaky or named_first else Urgency.MEDIUM
    return Urgency.MEDIUM if health is LayerHealth.UNKNOWN or named_first else Urgency.LOW


# -- groups and the network ------------------------------------------------------------------------


def _groups(
    layers: Mapping[str, OptimizationPriority],
    because: Sequence[Reason],
    shares: Mapping[str, float],
) -> list[Ranked]:
    """One target for the network and one for each block, with the troubles most of it shares."""
    owner = {name: block_of(name) for name in layers}
    blocks: dict[str, list[str]] = {}
    for name, block in owner.items():
        blocks.setdefault(block, []).append(name)
    of_network: list[Reason] = []
    of_blocks: dict[str, list[Reason]] = {}
    for reason in because:
        counts = Counter(owner[name] for name in reason.finding.layers if name in owner)
        most = len(layers) >= FEWEST_LAYERS and counts.total() > MOST_OF * len(layers)
        if most or not reason.finding.layers:
            of_network.append(reason)
            continue
        for block, count in counts.items():
            size = len(blocks[block])
            if 1 < size < len(layers) and count > MOST_OF * size:
                of_blocks.setdefault(block, []).append(reason)
    targets = [
        _together(block, OptimizationTarget.LAYER_GROUP, found, blocks[block], layers, shares)
        for block, found in of_blocks.items()
    ]
    if of_network:
        kind = OptimizationTarget.NETWORK_LEVEL
        targets.append(_together(NETWORK, kind, of_network, [], layers, shares))
    return targets


def _together(
    name: str,
    kind: OptimizationTarget,
    because: Sequence[Reason],
    members: Sequence[str],
    layers: Mapping[str, OptimizationPriority],
    shares: Mapping[str, float],
) -> Ranked:
    """A target of several layers is as sick as the gravest finding they share."""
    health = _gravest(because)
    rank = min(reason.rank for reason in because)
    about = [layers[m] for m in members] or list(layers.values())
    known = [i.optimization_potential for i in about if i.optimization_potential is not None]
    share = sum(shares[m] for m in members) if members else None
    potential = max(known, default=None)
    item = OptimizationPriority(
        name,
        kind,
        score(health, None, potential, 1.0 if share is None else share),
        urgency(health, named_first=rank == 0),
        missing("no layer has a gradient to compare") if potential is None else potential,
        _words(because),
        actions(because, share),
        tuple(members),
    )
    return _key(item, rank, 0 if kind is OptimizationTarget.NETWORK_LEVEL else 1), item
