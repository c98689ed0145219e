"""Tables, words, graphs and adapters: the networks of most people's first programs."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

from gradwatch.zoo.models import Adapter, Recurrent, Residual, mlp
from gradwatch.zoo.recipes.building import plainly, training
from gradwatch.zoo.recipes.data import graph, long_ago, rare, table, two_tables, words
from gradwatch.zoo.tasks import Task, blobs
from gradwatch.zoo.training import Draw, Training


def perceptron(task: Task, width: int, depth: int, drop: float = 0.1) -> nn.Sequential:
    """Linear layers, ReLU and dropout, as tutorials have them."""
    layers: list[nn.Module] = [nn.Linear(task.inputs, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Dropout(drop), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, task.outputs))


def classifier(draw: Draw) -> Training:
    """A perceptron that classifies the rows of a table, with Adam."""
    task = blobs(draw.data, inputs=16, classes=6, apart=1.0)
    model = perceptron(task, draw.pick((32, 48, 64)), draw.integer(2, 3))
    return training(draw, task, model, plainly(Adam, draw.rate(2e-3, 6e-3)), 150, 32)


def regression(draw: Draw) -> Training:
    """A perceptron that predicts a standardised number, with Adam."""
    task = table(draw.data)
    model = perceptron(task, draw.pick((48, 64)), 2, drop=0.0)
    return training(draw, task, model, plainly(Adam, draw.rate(3e-3, 6e-3)), 200, 64)


def plain_descent(draw: Draw) -> Training:
    """The same regression with plain SGD, where the learning rate is all there is."""
    made = regression(draw)
    made.build = plainly(SGD, draw.rate(0.05, 0.1))
    made.optimizer = made.build(made.model)
    return made


class TwoTowers(nn.Module):
    """A tower for each input; the class is read from both."""

    def __init__(self, columns: int, width: int, classes: int) -> None:
        super().__init__()
        self.user, self.thing = mlp([columns, width, width]), mlp([columns, width, width])
        self.act, self.head = nn.ReLU(), nn.Linear(2 * width, classes)

    def forward(self, user: Tensor, thing: Tensor) -> Tensor:
        """Scores of the classes."""
        both = torch.cat([self.user(user), self.thing(thing)], 1)
        out: Tensor = self.head(self.act(both))
        return out


def two_towers(draw: Draw) -> Training:
    """A recommender with a tower for each of its two inputs."""
    task = two_tables(draw.data)
    model = TwoTowers(task.inputs, draw.pick((24, 32)), task.outputs)
    return training(draw, task, model, plainly(Adam, draw.rate(3e-3, 8e-3)), 150, 32)


def rare_class(draw: Draw) -> Training:
    """Two classes, one rare but easy to tell, the loss weighted by frequency."""
    task = rare(draw.data, share=0.1, apart=4.0)
    weight = torch.tensor([0.6, 5.0])

    def weighted(out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(out, y, weight)

    task = Task(task.sample, weighted, 0.69, 0.0, 10, 2)
    model = mlp([10, draw.pick((16, 24)), 2])
    return training(draw, task, model, plainly(Adam, draw.rate(3e-3, 1e-2)), 150, 64)


def bag_of_words(draw: Draw) -> Training:
    """A linear model over word counts with plain SGD and weight decay."""
    task = words(draw.data)
    build = plainly(SGD, draw.rate(0.1, 0.3), weight_decay=1e-4)
    return training(draw, task, nn.Sequential(nn.Linear(task.inputs, task.outputs)), build, 120, 32)


def deep_residual(draw: Draw) -> Training:
    """Eight residual blocks whose gains begin at zero (ReZero, SkipInit)."""
    task = blobs(draw.data, inputs=16, classes=6, apart=1.0)
    model = Residual(task.inputs, 32, task.outputs, draw.integer(6, 8), norm=False, zero=True)
    return training(draw, task, model, plainly(Adam, draw.rate(2e-3, 4e-3)), 120, 32)


def memory(draw: Draw) -> Training:
    """A plain recurrent network that reads a sign at the end of a sequence."""
    model = Recurrent(2, draw.pick((24, 32)), 2)
    build = plainly(Adam, draw.rate(1e-3, 3e-3))
    return training(draw, long_ago(30, late=True), model, build, 100, 32, clip=1.0)


class GraphLayer(nn.Module):
    """Mixes neighbours by the graph (GCN), or by attention over it (GAT)."""

    def __init__(self, inputs: int, outputs: int, links: Tensor, *, attention: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(inputs, outputs)
        self.att_src = nn.Linear(outputs, 1, bias=False) if attention else None
        self.att_dst = nn.Linear(outputs, 1, bias=False) if attention else None
        self.leaky = nn.LeakyReLU(0.2)
        self.links: Tensor
        self.register_buffer("links", links)

    def forward(self, x: Tensor) -> Tensor:
        """New features of every node."""
        x = self.lin(x)
        if self.att_src is None or self.att_dst is None:
            degree = self.links.sum(1).rsqrt()
            return degree[:, None] * self.links @ (degree[:, None] * x)
        scores = self.leaky(self.att_src(x) + self.att_dst(x).T)
        return torch.softmax(scores.masked_fill(self.links == 0, -torch.inf), 1) @ x


def _graph(draw: Draw, build_rate: float, *, attention: bool) -> Training:
    task, links = graph(draw.data)
    width = draw.pick((16, 24))
    model = nn.Sequential(
        GraphLayer(task.inputs, width, links, attention=attention),
        nn.ELU() if attention else nn.ReLU(),
        nn.Dropout(0.5),
        GraphLayer(width, task.outputs, links, attention=attention),
    )
    build = plainly(Adam, build_rate, weight_decay=5e-4)
    return training(draw, task, model, build, 150, 120)


def gcn(draw: Draw) -> Training:
    """A graph convolution on a citation graph, the whole graph at every step."""
    return _graph(draw, draw.rate(0.01, 0.02), attention=False)


def gat(draw: Draw) -> Training:
    """Graph attention on a citation graph, the whole graph at every step."""
    return _graph(draw, draw.rate(0.005, 0.01), attention=True)


def lora(draw: Draw) -> Training:
    """A network trained on one task, frozen, and adapted to a near one by low-rank factors."""
    task = blobs(draw.data, inputs=16, classes=6, apart=1.5)
    base = mlp([task.inputs, 64, 64, task.outputs])
    before = Adam(base.parameters(), 3e-3)
    for _ in range(15):
        before.zero_grad()
        inputs, labels = task.sample(64, draw.data)
        torch.autograd.backward(task.loss(base(inputs), (labels + 1) % 6))
        before.step()
    base.zero_grad()
    layers = [Adapter(m, 8) if isinstance(m, nn.Linear) else m for m in base]
    build = plainly(AdamW, draw.rate(5e-3, 1e-2), weight_decay=0.0)
    return training(draw, task, nn.Sequential(*layers), build, 200, 32)
