"""Small models of the usual kinds in plain torch.nn, and inputs for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Inputs = dict[str, Any]
Case = tuple[nn.Module, Inputs, Callable[[nn.Module, Inputs], tuple[Tensor, Tensor]]]


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def _integers(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(3))


def _classify(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    output = model(inputs["x"])
    return output, F.cross_entropy(output, inputs["y"])


# ---- convolutional networks ----------------------------------------------------------------------------------------


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """ResNet-18's graph with an eighth of its channels."""

    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(4):
            outputs = width << stage
            for i in range(2):
                blocks.append(BasicBlock(inputs, outputs, 2 if stage and not i else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


def _resnet18() -> Case:
    return ResNet18(), {"x": _normal(4, 3, 64, 64), "y": _integers(5, 4)}, _classify


def _resnet18_channels_last() -> Case:
    model, inputs, loss = _resnet18()
    inputs["x"] = inputs["x"].to(memory_format=torch.channels_last)
    return model.to(memory_format=torch.channels_last), inputs, loss


class UNet(nn.Module):
    """Two levels, with transposed convolution and bilinear upsampling, and concatenated skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = self._level(1, 8)
        self.down2 = self._level(8, 16)
        self.middle = self._level(16, 32)
        self.up2 = nn.ConvTranspose2d(32, 16, 2, 2)
        self.level2 = self._level(32, 16)
        self.up1 = nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(16, 8, 1))
        self.level1 = self._level(16, 8)
        self.head = nn.Conv2d(8, 3, 1)

    @staticmethod
    def _level(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding="same", padding_mode="reflect"),
            nn.GroupNorm(4, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, padding_mode="replicate"),
            nn.InstanceNorm2d(outputs, affine=True),
            nn.ELU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.avg_pool2d(first, 2))
        y = self.middle(F.max_pool2d(second, 2))
        y = self.level2(torch.cat([self.up2(y), second], 1))
        return self.head(self.level1(torch.cat([self.up1(y), first], 1)))


def _unet() -> Case:
    return UNet(), {"x": _normal(2, 1, 32, 32), "y": _integers(3, 2, 32, 32)}, _classify


class ConvNeXt(nn.Module):
    """A stem and two ConvNeXt blocks: depthwise 7x7, channels-last LayerNorm, inverted bottleneck, layer scale."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.depthwise = nn.ModuleList(nn.Conv2d(width, width, 7, padding=3, groups=width) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.scale = nn.ParameterList(nn.Parameter(0.1 * torch.ones(width)) for _ in range(2))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for depthwise, norm, mlp, scale in zip(self.depthwise, self.norm, self.mlp, self.scale, strict=True):
            y = depthwise(x).permute(0, 2, 3, 1)
            x = x + (scale * mlp(norm(y))).permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


def _convnext() -> Case:
    return ConvNeXt(), {"x": _normal(2, 3, 32, 32), "y": _integers(5, 2)}, _classify


class MobileNet(nn.Module):
    """Inverted residuals with depthwise convolutions, squeeze-and-excitation and hard activations."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        wide = 4 * width
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish())
        self.expand = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 5, 1, 2, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 8, 1), nn.ReLU(), nn.Conv2d(8, wide, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.depthwise(self.expand(x))
        return self.head(x + self.project(y * self.excite(y)))


def _mobilenet() -> Case:
    return MobileNet(), {"x": _normal(4, 3, 32, 32), "y": _integers(5, 4)}, _classify


class DCGAN(nn.Module):
    """The generator and the discriminator of a DCGAN for 16x16 images; its loss trains both in one step."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(12, 2 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(True),
            nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(2 * width, 1, 4, 1, 0, bias=False),
            nn.Flatten(0),
        )

    def forward(self, noise: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        fake = self.generator(noise)
        on_real, on_fake = self.discriminator(real), self.discriminator(fake.detach())
        ones, zeros = torch.ones_like(on_real), torch.zeros_like(on_fake)
        bce = F.binary_cross_entropy_with_logits
        loss = bce(on_real, ones) + bce(on_fake, zeros) + bce(self.discriminator(fake), ones)
        return fake, loss


def _dcgan() -> Case:
    inputs = {"noise": _normal(4, 12, 1, 1), "real": _normal(4, 3, 16, 16).tanh()}
    return DCGAN(), inputs, lambda model, inputs: model(**inputs)


# ---- sequences, graphs, diffusion ----------------------------------------------------------------------------------


class Tagger(nn.Module):
    """A bidirectional two-layer LSTM over packed sequences of different lengths, with a GRU on top."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(24, 10, batch_first=True)
        self.rnn = nn.RNN(10, 8, batch_first=True)
        self.head = nn.Linear(8, 6)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(tokens), lengths.cpu(), batch_first=True)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(self.rnn(self.gru(hidden)[0])[0])


def _tagger() -> Case:
    tokens = 1 + _integers(49, 3, 9)
    lengths = torch.tensor([9, 6, 4])
    padding = torch.arange(9) >= lengths[:, None]
    tokens[padding] = 0
    tags = _integers(6, 3, 9)
    tags[padding] = -100

    def loss(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        output = model(inputs["tokens"], inputs["lengths"])
        return output, F.cross_entropy(output.flatten(0, 1), inputs["tags"].flatten())

    return Tagger(), {"tokens": tokens, "lengths": lengths, "tags": tags}, loss


class GraphNetwork(nn.Module):
    """Message passing over an edge list: gather, scatter-add means, scatter-max, a readout by graph."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(3 * width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor, graphs: int) -> Tensor:
        source, target = edges
        count = torch.zeros(len(nodes), device=nodes.device).index_add(
            0, target, torch.ones_like(target, dtype=nodes.dtype)
        )
        for _ in range(2):
            messages = F.relu(self.message(torch.cat([nodes[source], nodes.index_select(0, target)], 1)))
            index = target[:, None].expand_as(messages)
            mean = messages.new_zeros(nodes.shape).scatter_add(0, index, messages) / count.clamp(min=1)[:, None]
            largest = messages.new_zeros(nodes.shape).scatter_reduce(0, index, messages, "amax", include_self=False)
            nodes = nodes + torch.tanh(self.update(torch.cat([nodes, mean, largest], 1)))
        return self.head(nodes.new_zeros(graphs, nodes.shape[1]).index_add(0, graph, nodes))


def _graph() -> Case:
    inputs = {
        "nodes": _normal(20, 16),
        "edges": _integers(20, 2, 60),
        "graph": torch.arange(20) // 5,
        "graphs": 4,
        "y": _integers(3, 4),
    }

    def loss(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        output = model(inputs["nodes"], inputs["edges"], inputs["graph"], inputs["graphs"])
        return output, F.cross_entropy(output, inputs["y"])

    return GraphNetwork(), inputs, loss


class Diffusion(nn.Module):
    """Predicts the noise in images: sinusoidal time, a convolution, self-attention over pixels, nearest upsampling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, 2, 1)
        self.norm = nn.GroupNorm(4, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.last = nn.Conv2d(width, 3, 3, padding=1, padding_mode="circular")
        beta = torch.linspace(1e-4, 0.02, 100)
        self.register_buffer("signal", torch.cumprod(1 - beta, 0))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        half = self.width // 2
        frequency = torch.exp(-math.log(1e4) * torch.arange(half, device=x.device) / half)
        angle = step[:, None].float() * frequency
        time = self.time(torch.cat([angle.sin(), angle.cos()], 1))
        y = F.silu(self.norm(self.down(self.first(x)) + time[:, :, None, None]))
        pixels = y.flatten(2).transpose(1, 2)
        pixels = pixels + self.attention(pixels, pixels, pixels, need_weights=False)[0]
        y = pixels.transpose(1, 2).unflatten(2, y.shape[2:])
        return self.last(F.interpolate(y, scale_factor=2, mode="nearest"))


def _diffusion() -> Case:
    inputs = {"image": _normal(2, 3, 16, 16), "noise": _normal(2, 3, 16, 16).flip(0), "step": torch.tensor([3, 80])}

    def loss(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        signal = model.signal[inputs["step"]][:, None, None, None]
        noisy = signal.sqrt() * inputs["image"] + (1 - signal).sqrt() * inputs["noise"]
        output = model(noisy, inputs["step"])
        return output, F.mse_loss(output, inputs["noise"])

    return Diffusion(), inputs, loss


MODELS: dict[str, Callable[[], Case]] = {
    "resnet18": _resnet18,
    "resnet18_channels_last": _resnet18_channels_last,
    "unet": _unet,
    "convnext": _convnext,
    "mobilenet": _mobilenet,
    "dcgan": _dcgan,
    "lstm_tagger": _tagger,
    "graph_network": _graph,
    "diffusion": _diffusion,
}
"""By name, a function that returns a model, its inputs, and the function `(model, inputs) -> (output, loss)`."""
