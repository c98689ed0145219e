"""The layer graph of real models against the edges a person reads off their code."""

from collections import OrderedDict
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from tests.record.forward.driving import Driven, hook_count
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch.graph import Graph
from gradwatch.run import EventKind
from gradwatch.stats import Family

torch.set_num_threads(1)


def graph_of(model: nn.Module, *inputs: Tensor, steps: int = 1, **options: object) -> Graph:
    driven = Driven(model)

    def loss(model: nn.Module) -> Tensor:
        return total(model(*inputs))

    driven.train(loss, Family.ACT, steps=steps, **options)  # type: ignore[arg-type]
    assert {event.kind for event in driven.kept.events} <= {EventKind.NOT_RECORDED}
    driven.forward.detach()
    assert hook_count(model) == 0
    assert driven.forward.graph is not None
    return driven.forward.graph


def total(output: object) -> Tensor:
    if isinstance(output, Tensor):
        return output.pow(2).mean()
    if isinstance(output, dict):
        return sum((total(item) for item in output.values()), torch.zeros(()))
    assert isinstance(output, (tuple, list))
    return sum((total(item) for item in output if isinstance(item, Tensor)), torch.zeros(()))


def pairs(text: str) -> set[tuple[str, str]]:
    """`a>b>c d>e` as edges."""
    found = set()
    for chain in text.split():
        names = chain.split(">")
        found |= set(pairwise(names))
    return found


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(torch.tanh(self.two(F.relu(self.one(x)))))


class Residual(nn.Module):
    """Two residual blocks; in-place ReLU and a projection on the shortcut of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.c1, self.b1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.c2, self.b2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.short = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(x + self.b1(self.c1(x)))
        y = self.relu(self.b2(self.c2(x)))
        return self.head((y + self.short(x)).mean((2, 3)))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1)
        self.pool = nn.MaxPool1d(2)
        self.middle = nn.Conv1d(4, 4, 3, padding=1)
        self.up2, self.up1 = nn.Conv1d(8, 4, 3, padding=1), nn.Conv1d(8, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(self.pool(a)))
        c = F.interpolate(self.middle(self.pool(b)), scale_factor=2)
        d = F.interpolate(self.up2(torch.cat([b, c], 1)), scale_factor=2)
        return self.up1(torch.cat([a, d], 1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class Gpt(nn.Module):
    """One block, with the head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.ln1, self.attn = nn.LayerNorm(8), Attention()
        self.ln2, self.fc, self.out = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.ln = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        x = x + self.attn(self.ln1(x))
        x = x + self.out(F.gelu(self.fc(self.ln2(x))))
        return self.head(self.ln(x))


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(7, 8), nn.Embedding(7, 8)
        self.encoder, self.query = nn.Linear(8, 8), nn.Linear(8, 8)
        self.cross = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 7)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        memory = torch.tanh(self.encoder(self.source(a)))
        query = self.query(self.target(b))
        attended, _ = self.cross(query, memory, memory, need_weights=False)
        return self.out(attended + query)


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(7, 8), cell(8, 8, 2), nn.Linear(8, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(ids))[0])


class Branching(nn.Module):
    """Takes one branch or the other, by the data."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(self.left(h) if x.sum() > 0 else self.right(h))


class Reused(nn.Module):
    """One layer is called three times, one is registered under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.alias = self.again

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = torch.tanh(self.again(x))
        return self.last(self.alias(x))


class Dicts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x).relu()
        return {"a": self.a(h), "b": self.b(input=h)}


class FunctionalHead(nn.Module):
    """The tied head is no module: only the parameter says which layer it belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.body(self.embed(ids)), self.embed.weight)


CASES = {
    "mlp": (Mlp, torch.randn(2, 8), "one>two>three"),
    "residual": (
        Residual,
        torch.randn(2, 3, 4, 4),
        "stem>c1>b1>c2>b2>relu>head stem>c2 b1>short stem>short>head",
    ),
    "unet": (
        Unet,
        torch.randn(2, 1, 8),
        "down1>pool>down2>pool>middle>up2>up1 down2>up2 down1>up1",
    ),
    "gpt": (
        Gpt,
        torch.randint(0, 11, (2, 6)),
        "wte>ln1 wpe>ln1>attn.qkv>attn.proj>ln2>fc>out>ln>head wte>ln2 wpe>ln2 "
        "wte>ln wpe>ln attn.proj>ln",
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), torch.randint(0, 7, (5, 2)), "embed>rnn>out"),
    "gru": (lambda: Recurrent(nn.GRU), torch.randint(0, 7, (5, 2)), "embed>rnn>out"),
    "reused": (Reused, torch.randn(3, 4), "first>again>last"),
    "dicts": (Dicts, torch.randn(3, 4), "body>a body>b"),
    "functional head": (FunctionalHead, torch.randint(0, 7, (2, 3)), "embed>body>embed"),
}


@pytest.mark.parametrize("case", CASES)
def test_edges_are_those_of_the_code(case: str) -> None:
    torch.manual_seed(0)
    make, data, expected = CASES[case]
    graph = graph_of(make(), data)
    assert set(graph.edges) == pairs(expected)
    assert not graph.assumed
    assert not any(node.opaque for node in graph.nodes)


def test_nodes_are_in_forward_order_and_know_their_module() -> None:
    graph = graph_of(Residual(), torch.randn(2, 3, 4, 4))
    assert [node.layer for node in graph.nodes] == [
        *("stem", "c1", "b1", "c2", "b2", "relu", "short", "head")
    ]
    assert graph.nodes[2].kind == "BatchNorm2d"


def test_encoder_decoder_with_attention_inside_one_module() -> None:
    graph = graph_of(EncoderDecoder(), torch.randint(0, 7, (2, 4)), torch.randint(0, 7, (2, 3)))
    assert set(graph.edges) == pairs(
        "source>encoder>cross>cross.out_proj>out target>query>cross query>out"
    )


@pytest.mark.parametrize("weights", [True, False])
def test_multihead_attention_alone(weights: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.attention = nn.MultiheadAttention(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.b(x + self.attention(x, x, x, need_weights=weights)[0])

    graph = graph_of(Model(), torch.randn(5, 2, 8))
    assert set(graph.edges) == pairs("a>attention>attention.out_proj>b a>b")


def test_a_branch_taken_later_is_added() -> None:
    model, step = Branching(), [0]
    driven = Driven(model)

    def loss(model: nn.Module) -> Tensor:
        sign = 1.0 if step[0] == 0 else -1.0
        step[0] += 1
        return total(model(sign * torch.ones(2, 4)))

    driven.train(loss, Family.ACT)
    assert driven.forward.graph is not None
    assert set(driven.forward.graph.edges) == pairs("stem>left>head")
    driven.train(loss, Family.ACT)
    assert set(driven.forward.graph.edges) == pairs("stem>left>head stem>right>head")


def test_a_validation_before_the_step_leaves_no_edges() -> None:
    model, data = Mlp(), torch.randn(2, 8)

    def validate(step: int) -> None:
        with torch.no_grad():
            model(data)

    graph = graph_of(model, data, before=validate)
    assert set(graph.edges) == pairs("one>two>three")
    assert not any(node.opaque for node in graph.nodes)


def test_frozen_layers_keep_their_place() -> None:
    model = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), b=nn.ReLU(), c=nn.Linear(4, 4)))
    model.append(nn.Linear(4, 1))
    model.a.requires_grad_(False)
    graph = graph_of(model, torch.randn(2, 4))
    assert set(graph.edges) == pairs("a>b>c>3")
    assert not any(node.opaque for node in graph.nodes)


def test_what_runs_without_gradients_is_a_chain_and_marked() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                features = F.relu(self.b(F.relu(self.a(x))))
            return self.head(features)

    graph = graph_of(Model(), torch.randn(2, 4))
    assert set(graph.edges) == pairs("a>b>head")
    assert {node.layer for node in graph.nodes if node.opaque} == {"a", "b"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts(reentrant: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.c, self.d = nn.Linear(4, 4), nn.Linear(4, 1)

        def inner(self, x: Tensor) -> Tensor:
            return torch.tanh(self.c(F.relu(self.b(x))))

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.d(checkpoint(self.inner, x, use_reentrant=reentrant) + x)

    graph = graph_of(Model(), torch.randn(2, 4))
    assert set(graph.edges) == pairs("a>b>c>d a>d")
    opaque = {node.layer for node in graph.nodes if node.opaque}
    assert opaque == ({"b", "c"} if reentrant else set())


def test_a_compiled_part_is_marked() -> None:
    inside = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), torch.compile(inside, backend="aot_eager"))
    model.append(nn.Linear(4, 1))
    graph = graph_of(model, torch.randn(2, 4))
    assert set(graph.edges) == pairs("0>1.0>1.2>2")
    assert {node.layer for node in graph.nodes if node.opaque} == {"1.0", "1.2"}


def test_without_any_forward_the_order_of_registration_is_assumed() -> None:
    model = Mlp()
    driven = Driven(model)

    def loss(model: nn.Module) -> Tensor:
        return sum((p.pow(2).sum() for p in model.parameters()), torch.zeros(()))

    driven.train(loss, Family.ACT, steps=3)
    assert driven.forward.graph is not None
    assert driven.forward.graph.assumed
    assert driven.forward.graph.edges == (("one", "two"), ("two", "three"))
