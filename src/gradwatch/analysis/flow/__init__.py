"""The flow of gradients through the network: layers, time, the graph, paths, regions."""

from gradwatch.analysis.flow.analysis import GradientFlow, analyze_flow

__all__ = ["GradientFlow", "analyze_flow"]
