"""The wider zoo: data and modes; and each public recipe as it was published."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from gradwatch.zoo.changes import (
    altered,
    batch,
    duplicate_batches,
    eval_mode,
    fixed_set,
    inputs,
    known_levels,
    label_noise,
    new_task,
    optimizer,
    rate_times,
    replace_module,
    set_field,
    steps,
    targets_times,
)  # fmt: skip
from gradwatch.zoo.recipes.data import rare
from gradwatch.zoo.recipes.language import bert, both_ways, nano_gpt, translator, word_lm
from gradwatch.zoo.recipes.tabular import (
    bag_of_words,
    classifier,
    deep_residual,
    gat,
    gcn,
    lora,
    plain_descent,
    rare_class,
    regression,
    two_towers,
)  # fmt: skip
from gradwatch.zoo.recipes.vision import audio, mixer, resnet, unet, vit
from gradwatch.zoo.training import family

_RARE = rare(torch.Generator().manual_seed(3), share=0.03, apart=0.5)
_VALIDATED = set_field(validate_every=10)


def _mixup(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each sample mixed with another, targets as shares of two classes."""
    shares = functional.one_hot(y, 4).float()
    return (x, shares) if step < 0 else (0.8 * x + 0.2 * x.roll(1, 0),
                                         0.8 * shares + 0.2 * shares.roll(1, 0))  # fmt: skip


def _easy_first(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Less noise in the beginning: the mean with a clearer copy."""
    return (x if step < 0 or step > 60 else 0.8 * x), y


SICK = (
    family("table", "unscaled-inputs", "Inputs in the thousands.",
           regression, inputs(lambda x: 1000.0 * x)),
    family("classifier", "unscaled-inputs", "Columns with a mean and a spread of 500.",
           classifier, inputs(lambda x: 500.0 * x + 500.0)),
    family("table", "unscaled-targets", "Targets in the thousands, in somebody's currency.",
           regression, targets_times(1000.0)),
    family("table", "targets-in-millions", "Targets in the tens of thousands and plain SGD.",
           plain_descent, targets_times(3e4)),
    family("table", "tiny-targets", "Targets of a few thousandths.",
           regression, targets_times(3e-3)),
    family("rare", "never-predicted", "Three in a hundred, and the network ignores them.",
           rare_class, new_task(_RARE)),
    family("rare", "never-predicted-by-descent", "The same with SGD and momentum.",
           rare_class, new_task(_RARE), optimizer(SGD, lr=0.05, momentum=0.9), steps(200)),
    family("classifier", "labels-of-other-rows", "Inputs and labels were shuffled apart.",
           classifier, label_noise(1.0)),
    family("audio", "labels-of-other-sounds", "Labels belong to the sample before.",
           audio, label_noise(1.0)),
    family("vit", "labels-mostly-wrong", "Nine labels of ten are those of other pictures.",
           vit, label_noise(0.9)),
    family("resnet", "batch-of-one", "One picture at a time at the rate for many.",
           resnet, batch(1), rate_times(2.0)),
    family("table", "batch-of-one", "One row at a time and too bold a rate.",
           plain_descent, batch(1), rate_times(2.0, 4.0)),
    family("bert", "batches-four-times", "The loader gives every batch four times.",
           bert, duplicate_batches(4)),
    family("unet", "batches-ten-times", "The iterator is advanced on one step in ten.",
           unet, duplicate_batches(10)),
    family("mixer", "batches-twice", "Two workers read the same shard in step.",
           mixer, duplicate_batches(2)),
    family("bilstm", "sorted-by-class", "The set is sorted by class and never shuffled.",
           both_ways, fixed_set(640, shuffle=False, by_class=True), rate_times(3.0)),
    family("audio", "sorted-by-class", "Sounds come class by class.",
           audio, fixed_set(1280, shuffle=False, by_class=True), rate_times(2.0)),
    family("resnet", "evaluation-mode", "model.eval() and nobody calls train().",
           resnet, eval_mode()),
    family("bilstm", "never-back-to-training", "After the first validation eval() stays.",
           both_ways, _VALIDATED, set_field(stay_in_evaluation=True)),
    family("gcn", "evaluation-mode", "Dropout is off in training.", gcn, eval_mode()),
    family("bert", "dropout-in-validation", "Validation without model.eval().",
           bert, _VALIDATED, set_field(validate_in_training_mode=True)),
    family("audio", "norms-in-validation", "Batch norms use the validation batch's statistics.",
           audio, _VALIDATED, set_field(validate_in_training_mode=True)),
)  # fmt: skip

AS_PUBLISHED = (
    family("gpt", "as-published", "nanoGPT on characters.", nano_gpt, sick=False),
    family("word-lm", "as-published", "The word LSTM of torch's examples.", word_lm, sick=False),
    family("bert", "as-published", "Fine-tuning of an encoder; one token type is never used.",
           bert, sick=False),
    family("seq2seq", "as-published", "GRUs with attention.", translator, sick=False),
    family("bilstm", "as-published", "A bidirectional LSTM.", both_ways, sick=False),
    family("resnet", "as-published", "A small ResNet.", resnet, sick=False),
    family("vit", "as-published", "A vision transformer.", vit, sick=False),
    family("mixer", "as-published", "An MLP-Mixer.", mixer, sick=False),
    family("unet", "as-published", "Segmentation with a U-Net.", unet, sick=False),
    family("audio", "as-published", "Convolutions over time.", audio, sick=False),
    family("classifier", "as-published", "A perceptron over a table.", classifier, sick=False),
    family("table", "as-published", "Regression with Adam.", regression, sick=False),
    family("table", "plain-descent", "Regression with plain SGD.", plain_descent, sick=False),
    family("towers", "as-published", "Two towers, two inputs.", two_towers, sick=False),
    family("rare", "weighted", "A rare class and a loss weighted for it.", rare_class, sick=False),
    family("words", "as-published", "A linear model over word counts.", bag_of_words, sick=False),
    family("deep", "zero-gains", "Residual gains that begin at zero.", deep_residual, sick=False),
    family("gcn", "as-published", "A graph convolution.", gcn, sick=False),
    family("gat", "as-published", "Graph attention.", gat, sick=False),
    family("adapter", "as-published", "Low-rank factors, one of them zero at first.",
           lora, sick=False),
)  # fmt: skip

HEALTHY = (
    *AS_PUBLISHED,
    family("classifier", "few-rows-validated", "A fixed set in random batches, validated.",
           classifier, fixed_set(2000), _VALIDATED, sick=False),
    family("table", "one-fixed-batch", "Full-batch training: the same rows at every step.",
           regression, fixed_set(64, shuffle=False), batch(64), sick=False),
    family("bilstm", "validated", "Validation every ten steps, in evaluation mode.",
           both_ways, _VALIDATED, sick=False),
    family("resnet", "validated", "Batch norm and validation in evaluation mode.",
           resnet, _VALIDATED, sick=False),
    family("words", "tiny-batches", "Four texts at a time at a rate made for it.",
           bag_of_words, batch(4), rate_times(0.3), sick=False),
    family("audio", "mixup", "Mixed sounds and shares of classes.",
           audio, altered(_mixup), known_levels(floor=0.0), sick=False),
    family("mixer", "easy-first", "Clearer pictures in the beginning.",
           mixer, altered(_easy_first), sick=False),
    family("classifier", "a-tenth-of-labels-wrong", "Noise in the labels, and it learns.",
           classifier, label_noise(0.1), sick=False),
    family("audio", "norm-takes-the-scale", "Loud sounds; a batch norm stands first.",
           audio, inputs(lambda x: 30.0 * x),
           replace_module("0", lambda m: nn.Sequential(nn.BatchNorm1d(1), m)), sick=False),
    family("rare", "easily-told", "A rare class that is told apart without weights.",
           rare_class, new_task(rare(torch.Generator().manual_seed(4), 0.1, 6.0)), sick=False),
)  # fmt: skip

FAMILIES = SICK + HEALTHY
