"""The original's own rules, formula by formula: what `rules="original"` says.

One small module per system of trustformers-debug 0.1.1. They visit layers in insertion order where
the original's hash maps are random, keep its wrong numbers where it has them, and raise
`GradwatchError` where it panics. Sentences are ours. Nothing else in the project uses them.
"""
