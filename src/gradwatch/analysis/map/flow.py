"""The map of the flow analysis."""

# ruff: noqa: E501  (a table is read by lines)

from gradwatch.analysis.map.rows import System, parse

FLOW = parse("""
layer_flows.*.layer_name | M | = |
layer_flows.*.gradient_magnitudes | M | = |
layer_flows.*.gradient_directions.*.step | M | = |
layer_flows.*.gradient_directions.*.direction_vector | P | = | from the recorded sketch; the original repeats the norm
layer_flows.*.gradient_directions.*.magnitude | M | = |
layer_flows.*.gradient_directions.*.consistency_score | M | = | of the magnitudes; direction_cosine beside
layer_flows.*.flow_consistency | F | = | of ln norm
layer_flows.*.bottleneck_score | F | = | attenuation between neighbours in the graph
layer_flows.*.information_flow_rate | F | layer_flows.*.volatility | it measures jitter, and is named so
temporal_flows.*.step | F | = | the sample's own step
temporal_flows.*.layer_name | M | = |
temporal_flows.*.gradient_magnitude | M | = | with the window's series beside
temporal_flows.*.flow_direction | F | = | by tests; Growing and Shrinking instead of Forward and Backward
temporal_flows.*.stability_score | F | = | about the trend of ln norm
flow_network.nodes.*.layer_name | M | = |
flow_network.nodes.*.node_type | F | = | by transmission and place in the graph
flow_network.nodes.*.gradient_strength | M | = |
flow_network.nodes.*.connectivity | P | = | edges of the node; the original counts all layers
flow_network.nodes.*.influence_score | F | = | share of the squared norm
flow_network.edges.*.from_layer | F | = | edges of the recorded graph
flow_network.edges.*.to_layer | F | = |
flow_network.edges.*.flow_strength | F | = | transmission between the two layers
flow_network.edges.*.flow_consistency | F | = | of the transmission over time
flow_network.edges.*.edge_type | F | = |
flow_network.network_metrics.overall_flow_efficiency | F | = | geometric mean of the transmissions
flow_network.network_metrics.network_connectivity | F | = | reachable pairs
flow_network.network_metrics.bottleneck_density | F | = | None without layers
flow_network.network_metrics.flow_stability | F | = |
flow_network.network_metrics.information_propagation_speed | F | = | transmission per layer
critical_paths.*.path_id | P | = | from kind and ends
critical_paths.*.layers | P | = | by a graph algorithm
critical_paths.*.path_length | P | = |
critical_paths.*.total_flow_strength | P | = |
critical_paths.*.bottleneck_layers | P | = |
critical_paths.*.criticality_score | P | = | decades lost
critical_paths.*.optimization_potential | P | - | a constant: nothing measures a potential
vanishing_regions.*.region_id | F | = | stable
vanishing_regions.*.affected_layers | F | = | neighbours together
vanishing_regions.*.severity_level | F | = | four levels by decades
vanishing_regions.*.extent.start_layer | F | = |
vanishing_regions.*.extent.end_layer | F | = |
vanishing_regions.*.extent.affected_parameters | P | = | counted; 1000 in the original
vanishing_regions.*.extent.duration_steps | F | = | of the episode
vanishing_regions.*.mitigation_suggestions | F | = | no clipping against vanishing
exploding_regions.*.region_id | F | = | stable
exploding_regions.*.affected_layers | F | = | neighbours together
exploding_regions.*.severity_level | F | = | four levels by decades
exploding_regions.*.extent.start_layer | F | = |
exploding_regions.*.extent.end_layer | F | = |
exploding_regions.*.extent.affected_parameters | P | = | counted; 1000 in the original
exploding_regions.*.extent.duration_steps | F | = | of the episode
exploding_regions.*.mitigation_suggestions | F | = |
dead_zones.*.zone_id | F | = | stable
dead_zones.*.affected_layers | F | = |
dead_zones.*.dead_duration | F | = | of the present stretch
dead_zones.*.recovery_potential | F | = | four levels, from past revivals
dead_zones.*.intervention_required | F | = |
visualization_config.show_temporal_flows | F | = | changes the output; ignored in the original
visualization_config.show_critical_paths | F | = | changes the output; ignored in the original
visualization_config.show_problem_regions | F | = | changes the output; ignored in the original
visualization_config.color_scheme | F | = | gives a palette; ignored in the original
visualization_config.temporal_window | F | = | changes the output; ignored in the original
visualization_config.flow_threshold | F | = | changes the output; ignored in the original
""")

SYSTEMS = (
    System(
        "Flow",
        "visualization",
        "gradwatch.analysis.original.flow",
        "gradwatch.analyze_flow(run)",
        "gradwatch.analysis.flow.analysis:GradientFlow",
        FLOW,
    ),
)
