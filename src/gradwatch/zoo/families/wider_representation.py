"""Contrastive pairs, teachers, experts, several tasks, words."""

from functools import partial

from gradwatch.zoo.changes import leave_out, rate_times, set_field
from gradwatch.zoo.recipes.representation import (
    byol,
    clip,
    distillation,
    experts,
    simclr,
    two_tasks,
    words,
)
from gradwatch.zoo.training import family

fit = partial(family, sick=False)

FAMILIES = (
    family("contrastive", "temperature-1000", "All pairs look alike.",
           partial(simclr, temperature=1000)),
    family("contrastive", "temperature-tiny", "Codes of any length at a temperature of 0.001.",
           partial(simclr, temperature=1e-3, unit=False)),
    family("contrastive", "unscaled", "Inputs in the hundreds.", partial(simclr, scale=300),
           culprits=["encoder.0"]),
    family("contrastive", "collapsed", "Nothing keeps the codes of two networks apart.",
           partial(byol, guarded=False), rate_times(4)),
    family("contrastive", "forgotten-tower", "The optimizer has the pictures only.",
           clip, leave_out("texts*"), culprits=["texts.*"]),
    family("contrastive", "shuffled-pairs", "Texts of other pictures.",
           partial(clip, shuffled=True)),
    family("distillation", "softmax-twice", "The student's scores are already probabilities.",
           partial(distillation, twice=True)),
    family("experts", "one-takes-all", "The gate sends everything to one expert.",
           partial(experts, balance=0, bias=20), culprits=["gate", "experts.[123].*"]),
    family("multitask", "drowned", "One loss is ten thousand times the other.",
           partial(two_tasks, louder=1e4, plain=True), set_field(clip=1.0)),
    family("multitask", "forgotten-head", "One head is not in the optimizer.",
           two_tasks, leave_out("classes"), culprits=["classes"]),
    family("words", "both-zero", "Both tables start at zero.", partial(words, start=0.0),
           culprits=["words", "contexts"]),
    family("words", "too-slow", "A hundred-thousandth of the learning rate.",
           partial(words, context=0.3), rate_times(1e-5)),
    fit("contrastive", "simclr", "A loss that stays high.", simclr),
    fit("contrastive", "growing-batches", "A loss that grows with the batch.",
        partial(simclr, growing=True)),
    fit("contrastive", "half-precision", "Autocast to bfloat16.", partial(simclr, autocast=True)),
    fit("contrastive", "clip", "Two towers and a learnt temperature.", clip),
    fit("contrastive", "clip-growing", "Two towers, larger batches every other step.",
        partial(clip, growing=True)),
    fit("contrastive", "byol", "A slow copy outside the optimizer.", byol),
    fit("distillation", "plain", "A frozen teacher.", distillation),
    fit("distillation", "hot", "A high temperature.", partial(distillation, heat=8.0)),
    fit("experts", "balanced", "Four experts, each with a part of the data.", experts),
    fit("multitask", "plain", "Two heads on one trunk.", two_tasks),
    fit("multitask", "clipped", "Momentum, and gradients clipped to one.",
        partial(two_tasks, plain=True), set_field(clip=1.0)),
    fit("multitask", "learnt-weights", "The losses' weights are learnt; their sum goes below zero.",
        partial(two_tasks, learnt=True)),
    fit("words", "word2vec", "Contexts that start at zero.", words),
    fit("words", "both-random", "Both tables start at random.", partial(words, context=0.3)),
)  # fmt: skip
