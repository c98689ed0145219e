"""The map of weights, explosions, drift and animation."""

# ruff: noqa: E501  (a table is read by lines)

from gradwatch.analysis.map.rows import System, parse

DISTRIBUTION = parse("""
layer_analyses.*.layer_index | M | = |
layer_analyses.*.statistics.mean | M | = | in 64 bits
layer_analyses.*.statistics.std_dev | M | = | in 64 bits; equal elements have none
layer_analyses.*.statistics.skewness | M | = | None below three elements
layer_analyses.*.statistics.kurtosis | M | = | None below four elements
layer_analyses.*.statistics.entropy | F | = | of a histogram; the original takes max(log₂ std, 0)
layer_analyses.*.statistics.min | M | = |
layer_analyses.*.statistics.max | M | = |
layer_analyses.*.statistics.zero_fraction | M | = |
layer_analyses.*.health_score | M | = | 0 with NaN or Inf, which the original scores 100
layer_analyses.*.issues | M | = | codes; NaN and Inf are an issue
layer_analyses.*.recommendations | F | = | one per issue; the original has no words for two of four
overall_statistics.mean | F | = | of all elements; the original averages the layers
overall_statistics.std_dev | F | = | of all elements, merged exactly
overall_statistics.skewness | F | = | of all elements, merged exactly
overall_statistics.kurtosis | F | = | of all elements, merged exactly
overall_statistics.entropy | F | = | of the merged histograms
overall_statistics.min | F | = | the original starts at 0
overall_statistics.max | F | = | the original starts at 0
overall_statistics.zero_fraction | F | = | of all elements
distribution_health.score | F | = | the same rule on the pooled statistics
distribution_health.status | F | = | the same rule; Unknown without weights
outlier_detection.*.layer_index | F | outlier_detection.outliers.*.layer_index | robust rule
outlier_detection.*.weight_index | F | outlier_detection.outliers.*.weight_index | with the position beside
outlier_detection.*.value | F | outlier_detection.outliers.*.value |
outlier_detection.*.z_score | F | outlier_detection.outliers.*.z_score | signed, from median and MAD
outlier_detection.*.severity | F | outlier_detection.outliers.*.severity | limit grows with the tensor
l2_norms | M | layer_analyses.*.statistics.norm | in 64 bits
""")

EXPLOSION = parse("""
exploding_layers.*.layer_index | M | = | NaN and Inf are listed too
exploding_layers.*.gradient_norm | M | = | in 64 bits
exploding_layers.*.severity | F | = | against the other layers and the limit, in any order
exploding_layers.*.recommended_action | F | = | follows the severity
max_gradient_norm | M | = | of the finite layers; None without gradients
mean_gradient_norm | M | = | of the finite layers; None without gradients
std_gradient_norm | M | = | of the finite layers; None without gradients
explosion_ratio | M | = | None without gradients
overall_severity | M | = | None where nothing exploded
mitigation_recommendations | F | = | codes, each with a cause
""")

DRIFT = parse("""
mean_drift | P | = | relative change, weighted by elements; declared there without a function
max_drift | P | = |
severity | P | = | Minimal … High by the mean; Unknown where nothing could be measured
affected_layers | P | = | with the unmoved, added, removed and non-finite ones beside
""")

ANIMATION = parse("""
frames.*.step | M | = | steps must increase
frames.*.layers.*.name | M | = | in the order first recorded, not by name
frames.*.layers.*.mean_abs_grad | M | = | of the finite elements
frames.*.layers.*.max_abs_grad | M | = | of the finite elements
frames.*.layers.*.grad_norm | M | = | of the finite elements
frames.*.layers.*.is_vanishing | M | = | None without a gradient
frames.*.layers.*.is_exploding | M | = | None without a gradient
frames.*.layers.*.flow_intensity | M | = | with run_intensity (log scale) beside
csv | F | - | export_csv(): quoted, all columns; the original's seven come first
ascii | F | - | to_ascii(): log scale over the run, own signs for NaN and for no gradient
export_json_text | F | - | export_json(): strict, NaN and Inf come back
summary.total_steps | F | = | frames recorded; the original adds 1 to the last step
summary.layers_with_vanishing_grads | M | = | in forward order
summary.layers_with_exploding_grads | M | = | in forward order
summary.overall_health | F | = | by persistence and recency; NaN is Critical
summary.recommendations | F | = | codes, each with a cause
""")

SYSTEMS = (
    System(
        "Weight distribution",
        "weight_distribution",
        "gradwatch.analysis.original.weights",
        "gradwatch.analyze_weights(tensors_or_run)",
        "gradwatch.analysis.weights:WeightDistributionAnalysis",
        DISTRIBUTION,
    ),
    System(
        "Gradient explosion",
        "gradient_explosion",
        "gradwatch.analysis.original.explosion",
        "gradwatch.analysis.detect_gradient_explosion(gradients, threshold)",
        "gradwatch.analysis.explosion:GradientExplosionAnalysis",
        EXPLOSION,
    ),
    System(
        "Weight drift",
        None,
        "gradwatch.analysis.original.drift",
        "gradwatch.analyze_drift(before, after)",
        "gradwatch.analysis.drift:WeightDriftAnalysis",
        DRIFT,
    ),
    System(
        "Animation",
        "animator",
        "gradwatch.analysis.original.animator",
        "gradwatch.GradientFlowAnimator().recording()",
        "gradwatch.analysis.animator:Recording",
        ANIMATION,
    ),
)
