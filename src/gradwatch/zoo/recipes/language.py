"""Language: nanoGPT, the word LSTM of torch's examples, a BERT-like encoder, seq2seq, BiLSTM."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from gradwatch.zoo.models import Attention
from gradwatch.zoo.recipes.building import cosine, decay_groups, plainly, training
from gradwatch.zoo.recipes.data import padded, reversed_words
from gradwatch.zoo.tasks import chain, tokens
from gradwatch.zoo.training import Draw, Training


class Block(nn.Module):
    """A transformer block with dropout; norms before (nanoGPT, ViT) or after (BERT) its parts."""

    def __init__(self, width: int, heads: int, *, causal: bool, before: bool = True,
                 drop: float = 0.1) -> None:  # fmt: skip
        super().__init__()
        self.before = before
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, fused=False, causal=causal)
        self.c_fc, self.gelu = nn.Linear(width, 4 * width), nn.GELU()
        self.c_proj, self.drop = nn.Linear(4 * width, width), nn.Dropout(drop)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention and the two linear layers, each added to what came in."""
        if self.before:
            x = x + self.drop(self.attn(self.ln_1(x), mask))
            return self._add_feed_forward(x, self.ln_2(x))
        x = self.ln_1(x + self.drop(self.attn(x, mask)))
        out: Tensor = self.ln_2(self._add_feed_forward(x, x))
        return out

    def _add_feed_forward(self, x: Tensor, given: Tensor) -> Tensor:
        added: Tensor = self.drop(self.c_proj(self.gelu(self.c_fc(given))))
        return x + added


def small_normal(module: nn.Module) -> None:
    """GPT-2's and BERT's initialisation."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class GPT(nn.Module):
    """nanoGPT: the head shares its weight with the token table."""

    def __init__(self, vocabulary: int, width: int, depth: int, length: int, *,
                 tied: bool = True) -> None:  # fmt: skip
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(Block(width, 2, causal=True) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.apply(small_normal)
        for block in self.h:
            nn.init.normal_(block.get_parameter("c_proj.weight"), std=0.02 / (2 * depth) ** 0.5)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next token at every place."""
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))
        for block in self.h:
            x = block(x)
        out: Tensor = self.lm_head(self.ln_f(x))
        return out


def nano_gpt(draw: Draw) -> Training:
    """nanoGPT on characters: AdamW with decay groups, warm-up, cosine, clipping at 1."""
    task = chain(draw.data, vocabulary=16, length=16)
    model = GPT(16, draw.pick((32, 48)), draw.integer(2, 3), 16)
    made = training(draw, task, model, decay_groups(draw.rate(3e-3, 6e-3), 0.1), 200, 16, clip=1.0)
    made.schedule = cosine(made.steps)
    return made


class WordLSTM(nn.Module):
    """The word language model of torch's examples; its state goes on from batch to batch."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.encoder, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(0.2)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)
        self.state: tuple[Tensor, Tensor] | None = None
        for layer in (self.encoder, self.decoder):
            nn.init.uniform_(layer.weight, -0.1, 0.1)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next word; only passes of the training carry the state on."""
        going_on = self.state is not None and self.state[0].shape[1] == len(ids)
        states, last = self.rnn(self.drop(self.encoder(ids)), self.state if going_on else None)
        if torch.is_grad_enabled():
            self.state = (last[0].detach(), last[1].detach())
        out: Tensor = self.decoder(self.drop(states))
        return out


def word_lm(draw: Draw) -> Training:
    """A word LSTM, truncated back-propagation through time, plain SGD with a clipped gradient."""
    text, lanes, span = chain(draw.data, vocabulary=16, length=1200), 20, 12
    ids, following = text.sample(lanes, draw.data)

    def chunk(size: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = int(torch.randint(1200 - span, (), generator=random))
        return ids.repeat(size // lanes + 1, 1)[:size, at : at + span], following.repeat(
            size // lanes + 1, 1
        )[:size, at : at + span]

    def stream(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        at = span * (step % 100)
        return (x, y) if step < 0 else (ids[:, at : at + span], following[:, at : at + span])

    model = WordLSTM(16, draw.pick((32, 48)))
    build = plainly(SGD, draw.rate(4, 8))
    return training(draw, replace(text, sample=chunk), model, build, 200, lanes, clip=0.25,
                    alter=stream)  # fmt: skip


class Encoder(nn.Module):
    """A BERT-like encoder with word, place and token type tables and a classifier on it."""

    def __init__(self, vocabulary: int, width: int, classes: int, length: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(4 * length, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.layer = nn.ModuleList(Block(width, 2, causal=False, before=False) for _ in range(2))
        self.pooler, self.tanh = nn.Linear(width, width), nn.Tanh()
        self.classifier = nn.Linear(width, classes)

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        """Scores of the classes, from the mean of the places that are not padding."""
        places = self.position_embeddings(torch.arange(ids.shape[1]))
        x = self.word_embeddings(ids) + places + self.token_type_embeddings(types)
        x = self.drop(self.norm(x))
        for block in self.layer:
            x = block(x, mask)
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        out: Tensor = self.classifier(self.drop(self.tanh(self.pooler(mean))))
        return out


def bert(draw: Draw) -> Training:
    """Fine-tuning of an encoder that was trained a little before; the classifier is new."""
    task = padded(draw.data)
    model = Encoder(task.inputs, 32, 2, 12)
    before = Adam(model.parameters(), 2e-3)
    for _ in range(30):
        given, labels = task.sample(32, draw.data)
        before.zero_grad()
        torch.autograd.backward(task.loss(model(*given), labels))
        before.step()
    model.zero_grad()
    model.classifier.apply(small_normal)
    made = training(draw, task, model, decay_groups(draw.rate(2e-3, 4e-3), 0.01), 150, 32, clip=1.0)
    made.schedule = lambda step: min(1.0, (step + 1) / 10) * (1 - step / made.steps)
    return made


class Translator(nn.Module):
    """GRU encoder and decoder with additive attention over the source."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.tanh, self.energy = nn.Tanh(), nn.Linear(width, 1)
        self.out = nn.Linear(2 * width, vocabulary)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        """Scores of the translation, given its words one place later."""
        memory, last = self.encoder(self.source(source))
        states, _ = self.decoder(self.target(shifted), last)
        pairs = self.tanh(self.query(states)[:, :, None] + self.key(memory)[:, None])
        weights = torch.softmax(self.energy(pairs).squeeze(-1), -1)
        out: Tensor = self.out(torch.cat([states, weights @ memory], -1))
        return out


def translator(draw: Draw) -> Training:
    """Sequence to sequence with attention and teacher forcing: turns sequences round."""
    model = Translator(8, draw.pick((32, 48)))
    build = plainly(Adam, draw.rate(5e-3, 1e-2))
    return training(draw, reversed_words(), model, build, 200, 32, clip=1.0)


class BothWays(nn.Module):
    """A bidirectional LSTM; the last states of both directions are classified."""

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(2 * width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the classes."""
        _, (last, _) = self.lstm(self.embedding(ids))
        out: Tensor = self.fc(self.drop(torch.cat([last[0], last[1]], 1)))
        return out


def both_ways(draw: Draw) -> Training:
    """Classification of sentences with a bidirectional LSTM and Adam."""
    model = BothWays(20, draw.pick((24, 32)), 2)
    build = plainly(AdamW, draw.rate(5e-3, 1e-2))
    return training(draw, tokens(draw.data, length=9), model, build, 150, 32)
