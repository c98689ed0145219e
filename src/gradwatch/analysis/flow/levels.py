"""The words the flow analysis uses."""

from enum import StrEnum


class FlowDirection(StrEnum):
    """How the magnitude moves in time (the original said Forward and Backward)."""

    GROWING = "Growing"
    SHRINKING = "Shrinking"
    OSCILLATING = "Oscillating"
    STAGNANT = "Stagnant"
    UNKNOWN = "Unknown"


class NodeType(StrEnum):
    SOURCE = "Source"
    SINK = "Sink"
    BOTTLENECK = "Bottleneck"
    AMPLIFIER = "Amplifier"
    ATTENUATOR = "Attenuator"
    NORMAL = "Normal"


class EdgeType(StrEnum):
    STRONG = "Strong"
    MODERATE = "Moderate"
    WEAK = "Weak"
    INTERMITTENT = "Intermittent"
    BLOCKED = "Blocked"
    UNKNOWN = "Unknown"


class RegionSeverity(StrEnum):
    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"
    CRITICAL = "Critical"


class RecoveryPotential(StrEnum):
    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"
    NONE = "None"


class ColorScheme(StrEnum):
    DEFAULT = "Default"
    HIGH_CONTRAST = "HighContrast"
    COLOR_BLIND = "ColorBlind"
    MONOCHROME = "Monochrome"


PALETTES = {
    ColorScheme.DEFAULT: ("#30123b", "#4686fb", "#1be5b5", "#a4fc3c", "#fb7e21", "#7a0403"),
    ColorScheme.HIGH_CONTRAST: ("#000000", "#0000ff", "#00ffff", "#ffff00", "#ff0000", "#ffffff"),
    ColorScheme.COLOR_BLIND: ("#00204c", "#31446b", "#666970", "#958f78", "#cbba69", "#ffe945"),
    ColorScheme.MONOCHROME: ("#111111", "#3d3d3d", "#696969", "#959595", "#c1c1c1", "#eeeeee"),
}
