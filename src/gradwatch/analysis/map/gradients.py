"""The map of the gradient analysis."""

# ruff: noqa: E501  (a table is read by lines)

from gradwatch.analysis.map.rows import System, parse

LAYERS = parse("""
layer_details.*.layer_name | M | = |
layer_details.*.gradient_statistics.mean | M | = | of the finite norms
layer_details.*.gradient_statistics.std | M | = |
layer_details.*.gradient_statistics.variance | M | = |
layer_details.*.gradient_statistics.median | M | = |
layer_details.*.gradient_statistics.percentile_95 | F | = | interpolated (type 7)
layer_details.*.gradient_statistics.percentile_5 | F | = | interpolated (type 7)
layer_details.*.gradient_statistics.samples | M | = | finite ones; the others are counted beside
layer_details.*.gradient_statistics.skewness | M | = |
layer_details.*.gradient_statistics.kurtosis | M | = |
layer_details.*.flow_characteristics.consistency_score | F | = | of ln norm; independent of the unit
layer_details.*.flow_characteristics.smoothness_index | F | = | of ln norm; independent of the unit
layer_details.*.flow_characteristics.trend_strength | F | = | rank correlation with time
layer_details.*.flow_characteristics.oscillation_frequency | F | = | over n − 2 possible turning points
layer_details.*.flow_characteristics.stability_measure | F | = | about the trend of ln norm
layer_details.*.health_metrics.overall_health | F | = | worst rule wins; NaN is Critical, too little is Unknown
layer_details.*.health_metrics.gradient_stability | F | = |
layer_details.*.health_metrics.information_flow_rate | F | layer_details.*.flow_characteristics.volatility | it measures jitter, and is named so
layer_details.*.health_metrics.neuron_activity_ratio | F | = | measured rows; the original guesses from the norm
layer_details.*.health_metrics.convergence_indicator | F | = | in time order; the original reverses it
layer_details.*.health_metrics.risk_factors | F | = | codes
layer_details.*.optimization_suggestions.*.suggestion_type | F | = | follows the risk
layer_details.*.optimization_suggestions.*.description | F | = |
layer_details.*.optimization_suggestions.*.rationale | F | layer_details.*.optimization_suggestions.*.reason | the risk it answers
layer_details.*.optimization_suggestions.*.expected_improvement | P | - | a constant: nothing measures an improvement in advance
layer_details.*.optimization_suggestions.*.implementation_complexity | P | - | a constant per suggestion, not a measurement
layer_details.*.optimization_suggestions.*.side_effects | P | - | a fixed sentence per suggestion, not a measurement
layer_details.*.comparative_analysis.relative_performance | M | = | relative magnitude
layer_details.*.comparative_analysis.rank_among_layers | M | = |
layer_details.*.comparative_analysis.similar_layers | M | = | without the offset that makes tiny norms alike
layer_details.*.comparative_analysis.performance_gap | M | = |
layer_details.*.comparative_analysis.optimization_potential | F | = | distance in decades, both ways
""")

NETWORK = parse("""
network_level_analysis.overall_gradient_health | F | = | one dead layer is not Healthy
network_level_analysis.gradient_distribution.mean_gradient_norm | M | = |
network_level_analysis.gradient_distribution.gradient_variance | M | = |
network_level_analysis.gradient_distribution.gradient_skewness | M | = |
network_level_analysis.gradient_distribution.gradient_kurtosis | M | = |
network_level_analysis.gradient_distribution.layer_gradient_ratios.* | M | = |
network_level_analysis.gradient_distribution.distribution_type | F | = | with standard errors; Degenerate below 8 layers
network_level_analysis.layer_interactions.*.layer1 | F | = | neighbours and strongest pairs
network_level_analysis.layer_interactions.*.layer2 | F | = |
network_level_analysis.layer_interactions.*.interaction_strength | F | = | correlation of Δ ln norm
network_level_analysis.layer_interactions.*.interaction_type | F | = | by its significance
network_level_analysis.layer_interactions.*.impact_score | F | = |
network_level_analysis.convergence_indicators.gradient_convergence_score | F | = | from indicators in time order
network_level_analysis.convergence_indicators.parameter_convergence_score | P | = | from the recorded updates; the original takes 0.8 × the score above
network_level_analysis.convergence_indicators.loss_convergence_score | P | = | from the loss; the original takes 0.9 × the score above
network_level_analysis.convergence_indicators.convergence_trend | F | = | by tests
network_level_analysis.convergence_indicators.estimated_steps_to_convergence | P | = | an interval, or None
network_level_analysis.training_dynamics.learning_phase | F | = | from the loss
network_level_analysis.training_dynamics.gradient_momentum | P | = | measured, or None
network_level_analysis.training_dynamics.learning_velocity | P | = | measured, or None
network_level_analysis.training_dynamics.adaptation_rate | P | = | measured, or None
network_level_analysis.training_dynamics.plateau_detection.is_plateau | P | = | from the loss
network_level_analysis.training_dynamics.plateau_detection.plateau_duration | P | = | with its start
network_level_analysis.training_dynamics.plateau_detection.plateau_severity | P | = | None without a plateau
network_level_analysis.training_dynamics.plateau_detection.suggested_actions | P | = |
network_level_analysis.stability_assessment.overall_stability | F | = | mean of the corrected measures
network_level_analysis.stability_assessment.stability_trend | F | = | a trend; the original reads a level
network_level_analysis.stability_assessment.instability_sources.*.source_type | F | = |
network_level_analysis.stability_assessment.instability_sources.*.affected_layers | F | = |
network_level_analysis.stability_assessment.instability_sources.*.severity | F | = | 0 … 1 for every type
network_level_analysis.stability_assessment.instability_sources.*.description | F | = |
network_level_analysis.stability_assessment.stability_forecast.short_term_outlook | P | = | tested on held-back steps, or None
network_level_analysis.stability_assessment.stability_forecast.long_term_outlook | P | = | tested on held-back steps, or None
network_level_analysis.stability_assessment.stability_forecast.confidence_level | P | = | measured coverage
network_level_analysis.stability_assessment.stability_forecast.recommended_monitoring | P | - | two fixed sentences, whatever the data
""")

HIERARCHY = parse("""
gradient_hierarchy.layer_groups.*.group_name | F | = | blocks, kinds and levels found in the model
gradient_hierarchy.layer_groups.*.layers | F | = |
gradient_hierarchy.layer_groups.*.group_characteristics.average_gradient_norm | P | = | measured
gradient_hierarchy.layer_groups.*.group_characteristics.gradient_synchronization | P | = | measured
gradient_hierarchy.layer_groups.*.group_characteristics.learning_rate_sensitivity | P | = | None: needs the curvature
gradient_hierarchy.layer_groups.*.group_characteristics.optimization_difficulty | P | = | by the measured distance
gradient_hierarchy.layer_groups.*.internal_coherence | P | = | measured
gradient_hierarchy.hierarchy_levels.*.level_id | F | = | levels are kinds of group: blocks, kinds of layer, gradient levels
gradient_hierarchy.hierarchy_levels.*.level_name | F | = |
gradient_hierarchy.hierarchy_levels.*.layer_groups | F | = |
gradient_hierarchy.hierarchy_levels.*.level_importance | P | = | share of the squared norm
gradient_hierarchy.hierarchy_levels.*.optimization_impact | P | - | a constant: nothing measures an impact in advance
gradient_hierarchy.cross_level_interactions | P | = | measured; always empty in the original
optimization_priorities.*.target_name | M | = |
optimization_priorities.*.target_type | M | = |
optimization_priorities.*.priority_score | F | = | bounded terms
optimization_priorities.*.urgency_level | F | = | the same rule on the corrected health
optimization_priorities.*.optimization_potential | F | = |
optimization_priorities.*.recommended_actions.*.action_name | F | optimization_priorities.*.recommended_actions | sentences that follow the reasons
optimization_priorities.*.recommended_actions.*.action_type | F | optimization_priorities.*.reasons | the reasons say what kind of action it is
optimization_priorities.*.recommended_actions.*.expected_impact | P | - | a constant: nothing measures an impact in advance
optimization_priorities.*.recommended_actions.*.implementation_effort | P | - | a constant per action, not a measurement
optimization_priorities.*.recommended_actions.*.prerequisites | P | - | a fixed sentence per action, not a measurement
""")

SYSTEMS = (
    System(
        "Gradient analysis",
        "enhanced_analysis",
        "gradwatch.analysis.original.gradients",
        "gradwatch.analyze_gradients(run)",
        "gradwatch.analysis.gradients.analysis:GradientAnalysis",
        (*LAYERS, *NETWORK, *HIERARCHY),
    ),
)
