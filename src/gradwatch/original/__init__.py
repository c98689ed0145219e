"""The original's own rules, formula by formula: what `rules="original"` says.

One file for each of four modules of trustformers-debug 0.1.1: `weights`, `gradients`, `animation`,
`flow`. They visit layers in insertion order where the original's hash maps are random, keep its
wrong numbers where it has them, and say where NaN stops it. Levels are its words, without those it
never says. Sentences are ours.
"""
