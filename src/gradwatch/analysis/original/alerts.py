"""The five alerts; in JSON an object with the kind as its only key."""

from dataclasses import dataclass
from typing import Any, ClassVar

from gradwatch.analysis.result import Result


@dataclass(frozen=True)
class Alert(Result):
    """Any alert names its layer."""

    KIND: ClassVar[str]
    layer_name: str

    def to_dict(self) -> dict[str, Any]:
        return {self.KIND: super().to_dict()}


@dataclass(frozen=True)
class VanishingGradients(Alert):
    KIND = "VanishingGradients"
    norm: float
    threshold: float


@dataclass(frozen=True)
class ExplodingGradients(Alert):
    KIND = "ExplodingGradients"
    norm: float
    threshold: float


@dataclass(frozen=True)
class DeadNeurons(Alert):
    KIND = "DeadNeurons"
    ratio: float
    threshold: float


@dataclass(frozen=True)
class GradientOscillation(Alert):
    KIND = "GradientOscillation"
    variance: float


@dataclass(frozen=True)
class NoGradientFlow(Alert):
    KIND = "NoGradientFlow"
    steps_without_gradient: int
