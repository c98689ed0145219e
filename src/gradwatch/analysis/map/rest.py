"""The map of the rest of the debugger: history, anomalies, conflicts, thresholds, and what is out."""

# ruff: noqa: E501  (a table is read by lines)

from gradwatch.analysis.map.rows import System, parse

HISTORY = parse("""
*.layer_name | M | - | a run keeps whole series by name: run.series, run.steps
*.length | M | - | a run keeps whole series: len(run.steps)
*.first | M | - | run.column("grad_norm", name)[0]
*.last | M | - | run.column("grad_norm", name)[-1]
*.first_step | M | - | run.steps[0]
*.last_step | M | - | run.steps[-1]
*.trend_slope | F | - | trend_strength and convergence_indicator of analyze_gradients test the trend
""")

ANOMALIES = parse("""
baseline_statistics.*.mean | F | - | the baseline rolls over the clean samples before each step
baseline_statistics.*.std | F | - | the baseline is robust: median and MAD
baseline_statistics.*.median | F | - | the baseline rolls over the clean samples before each step
baseline_statistics.*.percentile_95 | F | anomalies.*.expected_range | of the rolling baseline
baseline_statistics.*.percentile_5 | F | anomalies.*.expected_range | of the rolling baseline
baseline_statistics.*.samples | F | - | the baseline rolls over the clean samples before each step
detections.*.*.layer_name | M | anomalies.*.layer_name |
detections.*.*.anomaly_type | F | anomalies.*.anomaly_type | from the signal itself, each episode once
detections.*.*.severity | F | anomalies.*.severity | always 1 in the original
detections.*.*.context.step | M | anomalies.*.step |
detections.*.*.context.gradient_norm | M | anomalies.*.gradient_norm |
detections.*.*.context.expected_range | P | anomalies.*.expected_range | (0, 1) for patterns in the original
detections.*.*.context.deviation_magnitude | F | anomalies.*.deviation_magnitude | robust
history_length | F | total_anomalies |
summary.layer_name | M | anomalies.*.layer_name | one summary for the run; anomalies name their layer
summary.total_anomalies | F | total_anomalies |
summary.anomaly_type_counts.* | F | anomaly_counts.* |
summary.average_severity | F | average_severity |
summary.recent_trend | F | recent_trend | events per step
summary.recommendations | F | - | advice comes from diagnose(), which names the cause
summary.anomalies.*.anomaly_type | F | anomalies.*.anomaly_type | keeps its own type; the original renames it
summary.anomalies.*.location | M | anomalies.*.layer_name |
summary.anomalies.*.description | F | - | the fields say it
summary.anomalies.*.severity | F | anomalies.*.severity |
summary.anomalies.*.metadata.step | M | anomalies.*.step | a number, not text
summary.anomalies.*.metadata.gradient_norm | M | anomalies.*.gradient_norm | a number, not text
summary.anomalies.*.metadata.expected_range_min | F | anomalies.*.expected_range | numbers, not text
summary.anomalies.*.metadata.expected_range_max | F | anomalies.*.expected_range | numbers, not text
summary.anomalies.*.metadata.deviation_magnitude | F | anomalies.*.deviation_magnitude | a number, not text
summary.anomalies.*.metadata.original_anomaly_type | F | anomalies.*.anomaly_type |
""")

CONFLICTS = parse("""
analysis.total_conflicts | F | total_conflicts |
analysis.conflicts.*.layer1 | F | conflicts.*.source1 | sources (losses, micro-batches) of the same parameter
analysis.conflicts.*.layer2 | F | conflicts.*.source2 |
analysis.conflicts.*.conflict_score | F | conflicts.*.conflict_score | negative cosine; between layers: layer_correlations(run)
analysis.conflicts.*.conflict_type | F | conflicts.*.conflict_type |
analysis.conflicts.*.recommendations | F | mitigation_strategies |
analysis.overall_conflict_level | F | overall_conflict_level | by share, not by count
analysis.mitigation_strategies.*.strategy_name | F | mitigation_strategies | no clipping: scaling does not turn a gradient
analysis.mitigation_strategies.*.description | F | mitigation_strategies |
analysis.mitigation_strategies.*.target_conflicts | F | conflicts.*.parameter |
analysis.mitigation_strategies.*.effectiveness | P | - | a constant: nothing measures effectiveness in advance
analysis.mitigation_strategies.*.implementation_complexity | P | - | a constant per strategy, not a measurement
analysis.mitigation_strategies.*.expected_outcome | P | - | a fixed sentence per strategy, not a measurement
report.total_conflicts | F | total_conflicts | the report repeats the analysis
report.overall_level | F | overall_conflict_level |
report.most_problematic_layers | F | conflicts.*.parameter | worst first
report.most_problematic_pairs.*.layer1 | F | conflicts.*.source1 | worst first
report.most_problematic_pairs.*.layer2 | F | conflicts.*.source2 |
report.most_problematic_pairs.*.conflict_score | F | conflicts.*.conflict_score |
report.most_problematic_pairs.*.conflict_type | F | conflicts.*.conflict_type |
report.most_problematic_pairs.*.recommendations | F | mitigation_strategies |
report.recommended_strategies.*.strategy_name | F | mitigation_strategies |
report.recommended_strategies.*.description | F | mitigation_strategies |
report.recommended_strategies.*.target_conflicts | F | conflicts.*.parameter |
report.recommended_strategies.*.effectiveness | P | - | a constant: nothing measures effectiveness in advance
report.recommended_strategies.*.implementation_complexity | P | - | a constant per strategy, not a measurement
report.recommended_strategies.*.expected_outcome | P | - | a fixed sentence per strategy, not a measurement
report.summary | F | overall_conflict_level |
""")

THRESHOLDS = parse("""
adaptive.layer_name | M | layer_name |
adaptive.vanishing_threshold | F | vanishing_threshold | learnt once, does not chase the signal
adaptive.exploding_threshold | F | exploding_threshold | learnt once, does not chase the signal
adaptive.adaptation_rate | P | - | limits do not follow the signal
adaptive.recent_gradients | M | - | a run keeps the whole series
adaptive.alerts | M | alerts.*.kind | one alert per episode, tested before anything is learnt
realtime.layer_name | M | layer_name |
realtime.current_gradient_norm | M | - | run.column("grad_norm", name)[-1]
realtime.gradient_velocity | F | - | volatility and trends of analyze_gradients
realtime.gradient_acceleration | F | - | volatility and trends of analyze_gradients
realtime.stability_window | M | - | a run keeps the whole series
realtime.anomaly_score | F | - | detect_anomalies(run): its reference excludes the value
realtime.stability_score | F | - | stability_measure of analyze_gradients
realtime.is_stable | F | - | stability_measure of analyze_gradients
realtime.is_oscillating | F | - | oscillation_frequency of analyze_gradients, with a test
results.layer_name | M | layer_name |
results.current_status | F | - | diagnose() gives the status, with its evidence
results.stability_score | P | - | 1 unless set by hand
results.anomaly_score | P | - | 0 unless set by hand
results.alerts | M | alerts.*.kind |
results.recommendations | P | - | empty unless set by hand
""")

DEBUGGER = parse("""
status.current_step | M | - | run.steps[-1]
status.overall_health | F | - | diagnose() judges the present state; the original counts old alerts
status.layer_statuses.*.health | F | - | health_metrics.overall_health of analyze_gradients: one rule everywhere
status.layer_statuses.*.latest_gradient_norm | M | - | run.column("grad_norm", name)[-1]
status.layer_statuses.*.gradient_trend | F | - | trend_strength of analyze_gradients
status.layer_statuses.*.alert_count | F | - | alerts of watch_thresholds: one per episode
status.layer_statuses.*.steps_recorded | M | - | gradient_statistics.samples of analyze_gradients
status.recent_alerts | F | - | alerts of watch_thresholds, and findings: raised and cleared once
status.total_alerts | F | - | the original forgets all but 100
status.active_layers | M | - | len(run.layers)
flow.*.gradient_norm | M | - | run.column("grad_norm", name)[-1]
flow.*.is_vanishing | F | - | vanishing_regions of analyze_flow
flow.*.is_exploding | F | - | exploding_regions of analyze_flow
flow.*.flow_consistency | F | - | flow_consistency of analyze_flow
quick.overall_health | F | - | diagnose()
quick.active_layers | M | - | len(run.layers)
quick.problematic_layers | F | - | regions of analyze_flow
quick.average_gradient_norm | M | - | mean_gradient_norm of analyze_gradients
quick.recent_alerts_count | F | - | alerts of watch_thresholds
quick.vanishing_risk | F | - | a share of layers, not a risk; regions of analyze_flow name them
quick.exploding_risk | F | - | a share of layers, not a risk; regions of analyze_flow name them
""")

SYSTEMS = (
    System(
        "Gradient history",
        "history",
        "gradwatch.analysis.original.history",
        "gradwatch.Run",
        None,
        HISTORY,
    ),
    System(
        "Anomalies",
        "anomaly_detection",
        "gradwatch.analysis.original.anomalies",
        "gradwatch.analysis.anomalies.detect_anomalies(run)",
        "gradwatch.analysis.anomalies:AnomalySummary",
        ANOMALIES,
    ),
    System(
        "Conflicts",
        "conflict_analysis",
        "gradwatch.analysis.original.conflicts",
        "gradwatch.analysis.conflicts.analyze_conflicts(gradients)",
        "gradwatch.analysis.conflicts:ConflictAnalysis",
        CONFLICTS,
    ),
    System(
        "Thresholds and monitoring",
        "monitoring",
        "gradwatch.analysis.original.monitoring",
        "gradwatch.analysis.thresholds.watch_thresholds(run)",
        "gradwatch.analysis.thresholds:LayerThresholds",
        THRESHOLDS,
    ),
    System(
        "Debugger: status, flow, quick analysis",
        None,
        "gradwatch.analysis.original.debugger",
        "gradwatch.diagnose(run)",
        None,
        DEBUGGER,
    ),
)
