"""Representations: contrastive pairs, teachers, experts, several tasks, words."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, logsigmoid, mse_loss, normalize

from gradwatch.zoo.models import linears, mlp
from gradwatch.zoo.recipes.odd import Feed, adam, copied, fixed, looped, single
from gradwatch.zoo.tasks import blobs, curve
from gradwatch.zoo.training import MOMENTUM, Draw, Training, Turn

CLASSES, SIGNAL, NUISANCE = 6, 8, 16


class Views:
    """Points whose class is in a few numbers, beside louder ones that each view draws anew."""

    def __init__(self, draw: Draw) -> None:
        self.centres = 1.5 * torch.randn(CLASSES, SIGNAL, generator=draw.data)

    def sample(self, size: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Two views of the same things, and their classes."""
        classes = torch.randint(CLASSES, (size,), generator=random)
        things = self.centres[classes] + 0.3 * torch.randn(size, SIGNAL, generator=random)

        def view() -> Tensor:
            noisy = things + 0.2 * torch.randn(size, SIGNAL, generator=random)
            return torch.cat([noisy, 3 * torch.randn(size, NUISANCE, generator=random)], 1)

        return view(), view(), classes


def confusion(codes: Tensor, classes: Tensor) -> float:
    """Share that nearest class centres get wrong, when codes are known to one hundredth."""
    codes = codes + 0.01 * codes.pow(2).mean().sqrt() * torch.randn(codes.shape, generator=fixed(3))
    half = len(codes) // 2
    centres = torch.stack([codes[:half][classes[:half] == c].mean(0) for c in range(CLASSES)])
    return float((torch.cdist(codes[half:], centres).argmin(1) != classes[half:]).float().mean())


def simclr(
    draw: Draw, *, temperature: float = 0.5, growing: bool = False, unit: bool = True,
    scale: float = 1.0, autocast: bool = False,
) -> Training:  # fmt: skip
    """Two views of a thing attract, those of others repel; the loss grows with the batch."""
    views, feed, width = Views(draw), Feed(), draw.pick((48, 64))
    model = nn.ModuleDict(
        {"encoder": mlp([SIGNAL + NUISANCE, width, 16]), "projector": mlp([16, 32, 12])}
    )
    steps = [0]

    def loss() -> Tensor:
        steps[0] += 1
        size = 32 + (min(160, steps[0] // 2) if growing else 32)
        both = feed(scale * torch.cat(views.sample(size, draw.data)[:2]))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            codes = model["projector"](model["encoder"](both))
        codes = normalize(codes.float(), dim=1) if unit else codes.float()
        near = (codes @ codes.T / temperature).fill_diagonal_(-math.inf)
        return cross_entropy(near, torch.arange(2 * size).roll(size))

    clean, _, classes = views.sample(400, fixed())
    turn = Turn("loss", loss, MOMENTUM(model.parameters(), draw.rate(0.1, 0.3)))
    return looped(
        draw, model, [turn], 200, lambda: confusion(model["encoder"](scale * clean), classes),
        good=0.02, feed=feed,
    )  # fmt: skip


def clip(draw: Draw, *, growing: bool = False, shuffled: bool = False) -> Training:
    """Two towers and a learnt temperature, as in CLIP."""
    mixing = torch.randn(8, 20, generator=draw.data), torch.randn(8, 14, generator=draw.data)
    feed, width, steps = Feed(), draw.pick((48, 64)), [0]
    pictures, texts = mlp([20, width, 12]), mlp([14, width, 12])
    model = nn.ModuleDict({"pictures": pictures, "texts": texts})
    scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    model.register_parameter("scale", scale)

    def pairs(size: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        things = torch.randn(size, 8, generator=random)
        first, second = (torch.tanh(things @ mix / 3) for mix in mixing)
        return first, second

    def scores(first: Tensor, second: Tensor) -> Tensor:
        left, right = normalize(pictures(first), dim=1), normalize(texts(second), dim=1)
        return torch.matmul(left, right.T) * scale.exp()

    def loss() -> Tensor:
        steps[0] += 1
        size = 32 + (min(160, steps[0] // 2) if growing else 16)
        first, second = pairs(size, draw.data)
        feed(first)
        if shuffled:
            second = second[torch.randperm(size, generator=draw.data)]
        near, same = scores(first, second), torch.arange(size)
        return (cross_entropy(near, same) + cross_entropy(near.T, same)) / 2

    clean = pairs(64, fixed())

    def outcome() -> float:
        return float((scores(*clean).argmax(1) != torch.arange(64)).float().mean())

    return single(draw, model, loss, draw.rate(2e-3, 5e-3), 200, outcome, good=0.05, feed=feed)


def byol(draw: Draw, *, guarded: bool = True) -> Training:
    """A network that foretells what its own moving average makes of another view.

    Without what keeps its codes apart (`guarded`), two views are just pulled together.
    """
    views, feed, width = Views(draw), Feed(), draw.pick((48, 64))
    online = mlp([SIGNAL + NUISANCE, width, 16], norm=nn.BatchNorm1d if guarded else None)
    ahead = mlp([16, 32, 16], norm=nn.BatchNorm1d) if guarded else nn.Identity()
    slow = copy.deepcopy(online).requires_grad_(False)
    model = nn.ModuleDict({"online": online, "predictor": ahead, "target": slow})

    def loss() -> Tensor:
        first, second, _ = views.sample(64, draw.data)
        feed(first)
        total = torch.zeros(())
        for one, other in ((first, second), (second, first)):
            wanted, guess = (slow if guarded else online)(other), ahead(online(one))
            if guarded:
                guess, wanted = normalize(guess, dim=1), normalize(wanted, dim=1)
            total = total + ((guess - wanted) ** 2).sum(1).mean()
        return total

    clean, _, classes = views.sample(400, fixed())
    return single(
        draw, model, loss, draw.rate(3e-3, 6e-3), 250,
        lambda: confusion(online(clean), classes), good=0.02, feed=feed,
        after=(lambda _: copied(online, slow, 0.05)) if guarded else None,
    )  # fmt: skip


def distillation(draw: Draw, *, twice: bool = False, heat: float = 3.0) -> Training:
    """A small student learns what a frozen teacher says, at a raised temperature."""
    width, feed = draw.pick((24, 32)), Feed()
    teacher, student = mlp([12, 64, 6]), mlp([12, width, width, 6])
    linears(teacher)[-1].weight.data.mul_(12)
    model = nn.ModuleDict({"teacher": teacher.requires_grad_(False), "student": student})

    def apart(points: Tensor) -> Tensor:
        wanted = torch.softmax(teacher(points) / heat, 1)
        given = student(points)
        if twice:
            given = torch.softmax(given, 1)
        said = torch.log_softmax(given / heat, 1)
        return heat**2 * kl_div(said, wanted, reduction="batchmean")

    clean = torch.randn(256, 12, generator=fixed())
    return single(
        draw, model, lambda: apart(feed(torch.randn(64, 12, generator=draw.data))),
        draw.rate(4e-3, 8e-3), 250, lambda: float(apart(clean)), chance=math.nan, feed=feed,
    )  # fmt: skip


def experts(draw: Draw, *, balance: float = 0.1, bias: float = 0.0) -> Training:
    """A mixture of experts of which the best takes each sample; a second loss spreads the work."""
    task, feed, count = blobs(draw.data, apart=1.2), Feed(), 4
    gate = nn.Linear(task.inputs, count)
    with torch.no_grad():
        gate.bias[0] += bias
    pool = nn.ModuleList(mlp([task.inputs, 24, task.outputs]) for _ in range(count))
    model = nn.ModuleDict({"gate": gate, "experts": pool})

    def answer(points: Tensor) -> tuple[Tensor, Tensor]:
        shares = torch.softmax(gate(points), 1)
        weight, chosen = shares.max(1)
        taken = torch.zeros(len(points), task.outputs)
        for index, expert in enumerate(pool):
            rows = (chosen == index).nonzero()[:, 0]
            if len(rows):
                taken = taken.index_add(0, rows, weight[rows, None] * expert(points[rows]))
        used = torch.bincount(chosen, minlength=count) / len(points)
        return taken, count * (used * shares.mean(0)).sum()

    def loss() -> Tensor:
        points, classes = task.sample(64, draw.data)
        scores, uneven = answer(feed(points))
        return cross_entropy(scores, classes) + balance * uneven

    clean, classes = task.sample(256, fixed())
    return single(
        draw, model, loss, draw.rate(5e-3, 1e-2), 200,
        lambda: float(cross_entropy(answer(clean)[0], classes)), chance=task.chance, feed=feed,
    )  # fmt: skip


def two_tasks(
    draw: Draw, *, louder: float = 1.0, learnt: bool = False, plain: bool = False
) -> Training:
    """A class and a number from one trunk; with `learnt` weights of the losses (Kendall et al.)."""
    first, second = blobs(draw.data, inputs=12), curve(draw.data, inputs=12)
    feed, width = Feed(), draw.pick((48, 64))
    parts = {
        "trunk": nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        "classes": nn.Linear(width, first.outputs),
        "number": nn.Linear(width, 1),
    }
    model, said = nn.ModuleDict(parts), {"class_loss": 0.0, "number_loss": 0.0}
    ease = nn.Parameter(torch.zeros(2))
    model.register_parameter("ease", ease if learnt else None)

    def both(size: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        points, classes = first.sample(size, random)
        others, values = second.sample(size, random)
        one, other = parts["trunk"](feed(points)), parts["trunk"](others)
        return cross_entropy(parts["classes"](one), classes), mse_loss(
            parts["number"](other), values
        )

    def loss() -> Tensor:
        a, b = both(64, draw.data)
        said.update(class_loss=float(a.detach()), number_loss=float(b.detach()))
        if learnt:
            return a * torch.exp(-ease[0]) + b * torch.exp(-ease[1]) + ease.sum()
        return a + louder * b

    def outcome() -> float:
        a, b = both(512, fixed())
        return max(float(a) / first.chance, float(b) / second.chance)

    rate = draw.rate(4e-3, 8e-3)
    chosen = MOMENTUM(model.parameters(), 5 * rate) if plain else adam(rate, model)
    turn = Turn("loss", loss, chosen)
    return looped(draw, model, [turn], 300, outcome, numbers=lambda _: said, feed=feed, good=0.25)


def words(draw: Draw, *, start: float = 0.5, context: float = 0.0) -> Training:
    """Skip-gram with negative samples; the contexts start at zero, as in word2vec."""
    topics, each = draw.pick((4, 5)), 8
    count = topics * each
    centres, contexts = nn.Embedding(count, 16), nn.Embedding(count, 16)
    nn.init.normal_(centres.weight, std=start)
    nn.init.normal_(contexts.weight, std=context)
    model = nn.ModuleDict({"words": centres, "contexts": contexts})

    def loss() -> Tensor:
        topic = torch.randint(topics, (128, 1), generator=draw.data)
        both = topic * each + torch.randint(each, (128, 2), generator=draw.data)
        others = torch.randint(count, (128, 5), generator=draw.data)
        word = centres(both[:, 0])
        true = (word * contexts(both[:, 1])).sum(1)
        false = (word[:, None] * contexts(others)).sum(2)
        return -(logsigmoid(true) + logsigmoid(-false).sum(1)).mean()

    def outcome() -> float:
        table = normalize(centres.weight, dim=1)
        nearest = (table @ table.T).fill_diagonal_(-2).argmax(1)
        return float((nearest // each != torch.arange(count) // each).float().mean())

    return single(draw, model, loss, draw.rate(1e-2, 2e-2), 200, outcome, good=0.05)
