"""The wider zoo: initialisation, activations, frozen and forgotten layers, precision."""

from torch import Tensor, nn
from torch.nn import functional, init

from gradwatch.zoo.changes import (
    Cut,
    dropout,
    follow,
    freeze,
    initialise,
    inputs,
    known_levels,
    loss,
    new_task,
    overwrite,
    rate_times,
    replace_module,
    rows,
    scale_weights,
    set_field,
    steps,
    targets_times,
)  # fmt: skip
from gradwatch.zoo.recipes.data import long_ago
from gradwatch.zoo.recipes.language import bert, both_ways, nano_gpt, translator, word_lm
from gradwatch.zoo.recipes.tabular import (
    classifier,
    deep_residual,
    gat,
    gcn,
    lora,
    memory,
    regression,
    two_towers,
)  # fmt: skip
from gradwatch.zoo.recipes.vision import audio, mixer, resnet, unet, vit
from gradwatch.zoo.training import family


class Nothing(nn.Module):
    """A branch that was switched off while somebody was looking for a bug."""

    def forward(self, x: Tensor) -> Tensor:
        """Zeros in the shape of the other tower's output."""
        return x.new_zeros(len(x), 32) * x.sum()


def _half(module: nn.Module) -> nn.Module:
    return module.half()


SICK = (
    family("gpt", "standard-normal-weights", "Weights of standard deviation one.",
           nano_gpt, initialise("*.weight", lambda w: init.normal_(w) if w.dim() > 1 else w)),
    family("table", "all-zero", "Every weight begins at zero.",
           regression, initialise("*.weight", init.zeros_), culprits=["?"]),
    family("classifier", "all-equal", "Every weight begins at the same number.",
           classifier, dropout(0.0), initialise("*", lambda w: init.constant_(w, 0.05)),
           culprits=["?"]),
    family("resnet", "gains-zero", "All gains of the batch norms begin at zero, the stem's too.",
           resnet, initialise("*bn?.weight", init.zeros_), initialise("*bn?.bias", init.zeros_)),
    family("vit", "loud-head", "The head begins hundreds of times too large.",
           vit, scale_weights("head.weight", 200, 600), culprits=["head"]),
    family("deep", "gains-of-eight", "Residual gains of eight where zero was meant.",
           deep_residual, initialise("blocks.*.gain", lambda g: init.constant_(g, 8.0))),
    family("resnet", "dead-channels", "Biases of a norm push its ReLU below zero.",
           resnet, initialise("layer1.bn1.bias", lambda b: init.constant_(b, -8.0)),
           culprits=["layer1.bn1", "layer1.relu1", "layer1.conv1"]),
    family("adapter", "both-factors-zero", "Both low-rank factors begin at zero.",
           lora, initialise("*.down.weight", init.zeros_), culprits=["*.down", "*.up"]),
    family("towers", "detached-tower", "One tower's output is detached.",
           two_towers, follow("thing", Cut), culprits=["thing", "thing.*"]),
    family("gcn", "detached-first-layer", "A detach behind the first layer.",
           gcn, follow("0", Cut), culprits=["0", "0.*"]),
    family("towers", "ignored-input", "One of two inputs does not reach the loss.",
           two_towers, replace_module("head", lambda head: nn.Linear(64, 4)),
           replace_module("user", lambda tower: nn.Sequential(nn.Linear(8, 32), nn.ReLU())),
           replace_module("thing", lambda tower: Nothing())),
    family("mixer", "softmax-before-loss", "Probabilities are given to cross-entropy.",
           mixer, follow("5", lambda: nn.Softmax(1)), culprits=["5", "5.0", "5.1"]),
    family("unet", "sigmoid-twice", "The loss applies the sigmoid once more.",
           unet, follow("outc", nn.Sigmoid), steps(150)),
    family("table", "relu-on-output", "A ReLU behind the last layer; targets have both signs.",
           regression, replace_module("", lambda m: nn.Sequential(*m.children(), nn.ReLU())),
           culprits=["5", "6"]),
    family("table", "sigmoid-on-output", "A regression that ends in a sigmoid.",
           regression, replace_module("", lambda m: nn.Sequential(*m.children(), nn.Sigmoid())),
           culprits=["5", "6"]),
    family("table", "tanh-on-large-output", "A tanh output for targets of five.",
           regression, targets_times(5.0),
           replace_module("", lambda m: nn.Sequential(*m.children(), nn.Tanh())),
           culprits=["5", "6"]),
    family("mixer", "scores-without-log", "nll_loss gets scores instead of log-probabilities.",
           mixer, loss(functional.nll_loss)),
    family("classifier", "squared-error-of-index", "Squared error against the class's number.",
           classifier, loss(lambda out, y: (out.mean(1) - 10.0 * y).pow(2).mean())),
    family("bilstm", "dropout-of-almost-all", "Dropout of 0.995.", both_ways, dropout(0.995)),
    family("resnet", "dropout-of-almost-all", "Dropout of 0.99 before the head.",
           resnet, dropout(0.99)),
    family("classifier", "half-precision-adam", "float16 weights; Adam's ε is zero there.",
           classifier, replace_module("", _half), inputs(lambda x: x.half()),
           loss(lambda out, y: functional.cross_entropy(out.float(), y))),
    family("table", "half-precision-overflow", "float16 and sums beyond 65,504.",
           regression, replace_module("", _half), inputs(lambda x: (3e4 * x).half()),
           loss(lambda out, y: functional.mse_loss(out.float(), y))),
    family("gpt", "set-anew-midway", "A block is initialised again in the middle of the run.",
           nano_gpt, overwrite("h.1.c_fc.weight", 0.5, lambda w: init.normal_(w, std=0.02)),
           culprits=["h.1.c_fc"]),
    family("resnet", "loaded-again", "The stem is overwritten by old weights after some steps.",
           resnet, overwrite("conv1.weight", 0.3, init.kaiming_normal_), culprits=["conv1"]),
    family("memory", "long-ago", "What matters happened a hundred moments before the end.",
           memory, new_task(long_ago(120))),
    family("word-lm", "without-clipping", "A rate that only clipping had kept in check.",
           word_lm, set_field(clip=None), rate_times(10, 30)),
)  # fmt: skip

HEALTHY = (
    family("vit", "zero-head", "The head begins at zero.",
           vit, initialise("head.*", init.zeros_), sick=False),
    family("resnet", "zero-last-gains", "The last gain of each block begins at zero, as published.",
           resnet, initialise("layer*.bn2.weight", init.zeros_), sick=False),
    family("classifier", "small-start", "Weights begin ten times smaller than usual and grow.",
           classifier, scale_weights("*.weight", 0.1), sick=False),
    family("classifier", "a-dead-quarter", "A quarter of the first units never fires; it learns.",
           classifier, rows("0.bias", 0.25, -20.0), sick=False),
    family("gpt", "frozen-places", "The table of places is frozen on purpose.",
           nano_gpt, freeze("wpe"), sick=False),
    family("bert", "frozen-tables", "Fine-tuning with all tables frozen and not handed over.",
           bert, freeze("*_embeddings"), sick=False),
    family("adapter", "one-layer-only", "Only the last layer has adapters that are trained.",
           lora, freeze("0.*"), sick=False),
    family("mixer", "label-smoothing", "Targets smoothed by a tenth.",
           mixer, loss(lambda out, y: functional.cross_entropy(out, y, label_smoothing=0.1)),
           known_levels(floor=0.35), sick=False),
    family("gat", "without-dropout", "Graph attention without dropout.",
           gat, dropout(0.0), sick=False),
    family("unet", "sigmoid-and-its-loss", "The sigmoid in the model and the loss that fits it.",
           unet, follow("outc", nn.Sigmoid), loss(functional.binary_cross_entropy), sick=False),
    family("table", "tanh-within-range", "A tanh output for targets within its range.",
           regression, targets_times(0.25),
           replace_module("", lambda m: nn.Sequential(*m.children(), nn.Tanh())), sick=False),
    family("seq2seq", "solved-by-one-place", "Attention ends up looking at a single place.",
           translator, steps(320), sick=False),
    family("resnet", "long-after-convergence", "Three times as long as it needs.",
           resnet, steps(220), sick=False),
    family("bilstm", "dropout-of-half", "Dropout of a half before the head.",
           both_ways, dropout(0.5), sick=False),
    family("audio", "summed-loss", "The loss is summed over the batch, the rate made for it.",
           audio, loss(lambda out, y: functional.cross_entropy(out, y, reduction="sum")),
           known_levels(chance=32 * 1.386), sick=False),
    family("towers", "frozen-tower", "One tower is frozen on purpose.",
           two_towers, freeze("user.0"), sick=False),
    family("deep", "gains-of-a-tenth", "Residual gains that begin at a tenth.",
           deep_residual, initialise("blocks.*.gain", lambda g: init.constant_(g, 0.1)),
           sick=False),
    family("memory", "tanh-recurrent", "A sign at the end of a sequence.", memory, sick=False),
)  # fmt: skip

FAMILIES = SICK + HEALTHY
