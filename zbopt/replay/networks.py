"""Small real networks, cut into virtual stages. Weights depend on the layer and the seed, never on the cuts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor, nn

from zbopt.replay.spec import Network

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


class Residual(nn.Module):
    """Compute an MLP block: x + B tanh(A norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        out: Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return out


class Attention(nn.Module):
    """Compute a transformer block with causal attention and norms first.

    Queries, keys and values have no bias. A key's bias has no effect, so its gradient is rounding noise, which AdamW
    would turn into steps of full size.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, sequence, width) to the same shape."""
        samples, sequence, width = x.shape
        qkv = self.qkv(self.norm(x)).view(samples, sequence, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, sequence, width))
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return out


class Embedding(nn.Module):
    """Embed tokens and their positions."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.tokens = nn.Embedding(network.vocabulary, network.width)
        self.positions = nn.Embedding(network.sequence, network.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token numbers (samples, sequence) to hidden states (samples, sequence, width)."""
        out: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return out


class Head(nn.Module):
    """Normalise hidden states and score every token of the vocabulary."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(network.width)
        self.scores = nn.Linear(network.width, network.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to scores (samples, sequence, vocabulary)."""
        out: Tensor = self.scores(self.norm(x))
        return out


def _seeded(network: Network, layer: int, build: Callable[[], nn.Module]) -> nn.Module:
    """Build a layer whose weights depend only on its number and the seed, drawn in float64 and then cast."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(network.seed * 1_000_003 + layer)  # a prime, so that few pairs of seed and layer collide
        torch.set_default_dtype(torch.float64)
        try:
            return build().to(DTYPES[network.dtype])
        finally:
            torch.set_default_dtype(before)


def cuts(layers: int, virtual_stages: int) -> list[range]:
    """Divide the blocks among the virtual stages as evenly as possible; the first ones get what is left over."""
    sizes = [layers // virtual_stages + (v < layers % virtual_stages) for v in range(virtual_stages)]
    ends = list(accumulate(sizes))
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def build_virtual_stage(network: Network, virtual_stage: int, virtual_stages: int) -> nn.Module:
    """Build the module of one virtual stage, with the same weights wherever the cuts are.

    Raises:
        ValueError: There are fewer layers than virtual stages.
    """
    layers = network.layers or virtual_stages
    if layers < virtual_stages:
        raise ValueError(f"{layers} layers for {virtual_stages} virtual stages; give at least {virtual_stages} layers")
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    gpt = network.kind == "gpt"
    embed = -1
    if gpt and virtual_stage == 0:
        modules["embedding"] = _seeded(network, embed, lambda: Embedding(network))
    for layer in cuts(layers, virtual_stages)[virtual_stage]:
        block = (lambda: Attention(network.width, network.heads)) if gpt else (lambda: Residual(network.width))
        modules[f"block{layer}"] = _seeded(network, layer, block)
    if gpt and virtual_stage == virtual_stages - 1:
        head = _seeded(network, layers, lambda: Head(network))
        if network.tied:
            tokens = _seeded(network, embed, lambda: Embedding(network)).get_parameter("tokens.weight")
            head.get_parameter("scores.weight").data.copy_(tokens.data)
        modules["head"] = head
    return nn.Sequential(modules)


TIED = {"first": "embedding.tokens.weight", "last": "head.scores.weight"}
"""Names of the two copies of a tied weight, in the first and in the last virtual stage."""


def loss_of(network: Network) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function from output and target to the mean loss of one microbatch, a scalar."""
    if network.kind == "gpt":
        return lambda out, target: nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1))
    return nn.functional.mse_loss


def batch(network: Network, samples: int, *draw: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of ``samples`` samples; the numbers of ``draw`` (step, replica, ...) choose which."""
    generator = torch.Generator().manual_seed(hash((network.seed, *draw)) % 2**63)
    if network.kind == "gpt":
        shape = (samples, network.sequence)
        tokens = [torch.randint(network.vocabulary, shape, generator=generator) for _ in range(2)]
        return tokens[0], tokens[1]
    pair = [torch.randn(samples, network.width, generator=generator, dtype=torch.float64) for _ in range(2)]
    dtype = DTYPES[network.dtype]
    return pair[0].to(dtype), pair[1].to(dtype)


def boundary(network: Network, virtual_stage: int, virtual_stages: int) -> tuple[Tensor, Tensor]:
    """Return an example input and output of one microbatch, from which PyTorch's runtime sizes its buffers."""
    dtype = DTYPES[network.dtype]
    sample = (network.microbatch_size, network.sequence) if network.kind == "gpt" else (network.microbatch_size,)
    example_input = torch.zeros(*sample, network.width, dtype=dtype).requires_grad_(virtual_stage > 0)
    example_output = torch.zeros(*sample, network.width, dtype=dtype).requires_grad_()
    if network.kind == "gpt" and virtual_stage == 0:
        example_input = torch.zeros(sample, dtype=torch.long)
    if network.kind == "gpt" and virtual_stage == virtual_stages - 1:
        example_output = torch.zeros(*sample, network.vocabulary, dtype=dtype).requires_grad_()
    return example_input, example_output
