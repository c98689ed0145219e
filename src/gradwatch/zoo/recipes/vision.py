"""Pictures and sound: a ResNet, a ViT, a U-Net, an MLP-Mixer, a one-dimensional convolution."""

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from gradwatch.zoo.recipes.building import cosine, decay_groups, plainly, training
from gradwatch.zoo.recipes.data import disks, tones
from gradwatch.zoo.recipes.language import Block
from gradwatch.zoo.tasks import bars
from gradwatch.zoo.training import Draw, Training


class BasicBlock(nn.Module):
    """Two convolutions with batch norm, added to the input."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 2 if after != before else 1
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1, self.relu1 = nn.BatchNorm2d(after), nn.ReLU()
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2, self.relu2 = nn.BatchNorm2d(after), nn.ReLU()
        self.downsample = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The input plus the branch, cut at zero."""
        branch = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu2(self.downsample(x) + branch)
        return out


class ResNet(nn.Module):
    """A stem, blocks that halve the picture, a mean and a linear layer."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU()
        self.layer1, self.layer2 = BasicBlock(width, width), BasicBlock(width, 2 * width)
        self.pool, self.drop = nn.AdaptiveAvgPool2d(3), nn.Dropout(0.1)
        self.fc = nn.Linear(9 * 2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.fc(self.drop(self.pool(x).flatten(1)))
        return out


def resnet(draw: Draw) -> Training:
    """A small ResNet: SGD with momentum and decay, cosine."""
    build = plainly(SGD, draw.rate(0.03, 0.1), momentum=0.9, weight_decay=5e-4)
    made = training(draw, bars(draw.data), ResNet(draw.pick((8, 12)), 4), build, 100, 32)
    made.schedule = cosine(made.steps, warm=0.05, low=0.0)
    return made


class Patches(nn.Module):
    """A picture of twelve pixels cut into nine patches, each a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(1, width, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """One row for each patch."""
        out: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out


class ViT(nn.Module):
    """Patches, a class token, places, blocks, a head on the class token."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patch_embed = Patches(width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(0.2 * torch.randn(1, 10, width))
        self.blocks = nn.ModuleList(Block(width, 2, causal=False) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        first = self.cls_token.expand(len(x), -1, -1)
        x = torch.cat([first, self.patch_embed(x)], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x)[:, 0])
        return out


def vit(draw: Draw) -> Training:
    """A small vision transformer: AdamW, warm-up, cosine to zero, clipping at 1."""
    model = ViT(draw.pick((32, 48)), 2, 4)
    build = decay_groups(draw.rate(3e-3, 5e-3), 0.05, (0.9, 0.999))
    made = training(draw, bars(draw.data, 12), model, build, 200, 32, clip=1.0)
    made.schedule = cosine(made.steps, low=0.0)
    return made


class MixerBlock(nn.Module):
    """Mixes places, then channels."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(places, 24), nn.GELU(), nn.Linear(24, places))
        self.channels = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Both branches, each added to what came in."""
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.channels(self.norm2(x))
        return out


def mixer(draw: Draw) -> Training:
    """An MLP-Mixer with Adam."""
    width = draw.pick((24, 32))
    blocks = [MixerBlock(9, width) for _ in range(2)]
    head = [nn.LayerNorm(width), nn.Flatten(), nn.Linear(9 * width, 4)]
    model = nn.Sequential(Patches(width), *blocks, *head)
    build = plainly(Adam, draw.rate(2e-3, 5e-3))
    return training(draw, bars(draw.data, 12), model, build, 150, 32)


def twice(before: int, after: int) -> nn.Sequential:
    """The U-Net's pair of convolutions."""
    layers = []
    for inputs in (before, after):
        layers += [nn.Conv2d(inputs, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Down twice, up twice, with the fine pictures carried across."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1, self.down2 = twice(1, width), twice(width, 2 * width)
        self.bottom, self.pool = twice(2 * width, 4 * width), nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.conv2 = twice(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.conv1, self.outc = twice(2 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A score for each pixel."""
        fine = self.down1(x)
        coarse = self.down2(self.pool(fine))
        x = self.up2(self.bottom(self.pool(coarse)))
        x = self.up1(self.conv2(torch.cat([coarse, x], 1)))
        out: Tensor = self.outc(self.conv1(torch.cat([fine, x], 1)))
        return out


def unet(draw: Draw) -> Training:
    """Segmentation with a small U-Net and Adam."""
    model = UNet(draw.pick((4, 6)))
    return training(draw, disks(), model, plainly(Adam, draw.rate(8e-3, 2e-2)), 80, 8)


def audio(draw: Draw) -> Training:
    """A convolution over time for sounds: strides, batch norm, AdamW."""
    width = draw.pick((12, 16))
    layers: list[nn.Module] = []
    for before, after, size in ((1, width, 9), (width, width, 5), (width, 2 * width, 3)):
        layers += [nn.Conv1d(before, after, size, 2), nn.BatchNorm1d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.1),
                          nn.Linear(2 * width, 4))  # fmt: skip
    return training(draw, tones(), model, plainly(AdamW, draw.rate(3e-3, 1e-2)), 120, 32)
