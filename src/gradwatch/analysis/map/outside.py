"""Parts of the original without a result of their own here, and where their use went."""

OUTSIDE = (
    (
        "Performance tracking (times and memory per layer, bottlenecks, snapshots, trends)",
        "It timed an empty interval with memory 0 and never stored a snapshot. We record the time "
        "of each step (`step_seconds`) and our own overhead.",
    ),
    (
        "Comprehensive report",
        "`gradwatch report` writes one page; `gradwatch analyze --json` has every number.",
    ),
    (
        "`GradientFlow.dead_neurons_ratio`, `gradient_min`, `gradient_max`",
        "Guessed from the norm there; recorded here (`grad_zero_rows`, `grad_dead_rows`, "
        "`grad_min`, `grad_max`).",
    ),
    (
        "`WeightHealth`, `MonitoringConfig`, `analysis_depth`, `oscillation_variance_threshold`",
        "Declared and never read or built; an option here changes an output or does not exist.",
    ),
    (
        "Tensor statistics and comparison, second weight analyzer, stability checker",
        "`gradwatch.analyze_weights`, `gradwatch.analyze_drift`, `gradwatch weights`, "
        "`gradwatch drift`.",
    ),
    (
        "General anomaly detector and its recovery actions",
        "Checks and findings, with advice; nothing acts on a training by itself.",
    ),
)
