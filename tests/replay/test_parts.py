"""The pieces of the replay by themselves, in this process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed; install zbopt[replay]")

import torch

from zbopt.formats.torch_csv import Op, parse_action
from zbopt.replay.deferred import defer_weights
from zbopt.replay.lowering import lower
from zbopt.replay.networks import batch, build_virtual_stage, cuts
from zbopt.replay.number_check import deviation, limits
from zbopt.replay.observe import MemoryMeter, checksum
from zbopt.replay.optimizer_step import LossScale, decide
from zbopt.replay.post_validation import prefixes
from zbopt.replay.spec import Network, Training


@pytest.mark.parametrize("virtual_stages", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["mlp", "gpt"])
def test_weights_do_not_depend_on_the_cut(kind: str, virtual_stages: int) -> None:
    network = Network(kind=kind, layers=5)  # type: ignore[arg-type]
    (whole,) = (dict(build_virtual_stage(network, 0, 1).named_parameters()),)
    parts = [build_virtual_stage(network, v, virtual_stages) for v in range(virtual_stages)]
    found = {name: p for part in parts for name, p in part.named_parameters()}
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_cuts_are_even() -> None:
    assert [len(cut) for cut in cuts(7, 3)] == [3, 2, 2]
    with pytest.raises(ValueError, match="3 layers for 4 virtual stages; give at least 4 layers"):
        build_virtual_stage(Network(layers=3), 0, 4)


def test_tied_weights_begin_alike() -> None:
    network = Network(kind="gpt", layers=2)
    first, last = (build_virtual_stage(network, v, 2) for v in (0, 1))
    tied = first.get_parameter("embedding.tokens.weight"), last.get_parameter("head.scores.weight")
    assert torch.equal(*tied)
    other = build_virtual_stage(network.model_copy(update={"tied": False}), 1, 2)
    assert not torch.equal(tied[0], other.get_parameter("head.scores.weight"))


def test_deferred_weights_are_autograd_s_bit_for_bit() -> None:
    """B leaves the weight gradients of Linear out, W adds them; two microbatches add up."""
    network = Network(kind="gpt", layers=1)
    plain, split = build_virtual_stage(network, 0, 1), build_virtual_stage(network, 0, 1)
    queue = defer_weights(split)
    for draw in range(2):
        tokens, _ = batch(network, 2, draw)
        plain(tokens).square().sum().backward()
        split(tokens).square().sum().backward()
        missing = [n for n, p in split.named_parameters() if p.grad is None]
        assert draw or missing == [f"block0.{n}.weight" for n in ("qkv", "out", "up", "down")] + ["head.scores.weight"]
        queue.take()()
    for (name, expected), found in zip(plain.named_parameters(), split.parameters(), strict=True):
        assert expected.grad is not None
        assert found.grad is not None
        assert torch.equal(expected.grad, found.grad), name


def test_the_meter_counts_each_saved_storage_once_and_forgets() -> None:
    """x tanh(x) keeps two storages of 8 float64: tanh its output, and the product x and, once more, tanh's output."""
    x = torch.randn(8, dtype=torch.float64, requires_grad=True)
    meter = MemoryMeter([])
    with meter.watching():
        y = (x * torch.tanh(x)).sum()
    assert meter.bytes() == 2 * 8 * 8
    y.backward()
    del y
    assert meter.bytes() == 0


def test_parameters_count_for_nothing() -> None:
    """A product with a parameter keeps the parameter, which lies there anyway, and the input."""
    weight, x = torch.nn.Parameter(torch.ones(8)), torch.ones(8, requires_grad=True)
    meter = MemoryMeter([weight])
    with meter.watching():
        kept = weight * x
    assert meter.bytes() == 8 * 4
    del kept
    assert meter.bytes() == 0


def test_checksums_see_a_single_bit() -> None:
    one = torch.ones(3, dtype=torch.bfloat16)
    other = one.clone()
    other[2] = 1.0078125
    assert checksum(one) == checksum(one.clone()) != checksum(other)
    assert len(checksum(torch.tensor(1.0))) == 12


def test_decisions() -> None:
    """Square sums 9 and 16 have the norm 5."""
    sums = torch.tensor([9.0, 16.0], dtype=torch.float64)
    assert (decide(sums, None).norm, decide(sums, None).act) == (5.0, "step")
    assert decide(sums, 5.0).act == "step"
    assert decide(sums, 4.9).act == "clip"
    assert decide(torch.tensor([1.0, float("nan")]), 5.0).act == "skip"
    assert decide(torch.tensor([float("inf"), 1.0]), None).act == "skip"


def test_the_loss_scale_halves_and_doubles() -> None:
    scale = LossScale(Training(loss_scale=8.0, growth_interval=2))
    good, bad = decide(torch.ones(1), None), decide(torch.tensor([float("inf")]), None)
    values = []
    for decision in (good, bad, good, good, good):
        scale.update(decision)
        values.append(scale.value)
    assert values == [8.0, 4.0, 4.0, 8.0, 8.0]


def test_deviations_and_limits() -> None:
    """float64's unit in the last place is 2^-52; float32's limit as many of its own; above 64 terms by their number."""
    expected = torch.tensor([4.0, -2.0])
    assert deviation(expected.clone(), expected) == 0.0
    assert deviation(torch.tensor([4.0, -1.0]), expected) == 0.25
    assert deviation(torch.tensor([float("nan"), -2.0]), expected) == float("inf")
    assert deviation(torch.ones(2), torch.zeros(2)) == float("inf")
    assert limits("float64") == limits("float64", 64) == (1e-15, 1e-9)
    assert limits("float64", 128)[0] == 2e-15
    assert limits("float32")[0] == pytest.approx(1e-15 * 2**29)
    assert limits("bfloat16")[1] == 0.1


def test_prefixes_of_post_validation_by_hand(plans: SimpleNamespace) -> None:
    """ZB-H1 p=4: before validation stage s runs its p-s forwards before the first B, the last one, which makes the
    losses, none. What is sent is received: nothing is under way when the prefix is repeated.
    """
    rows = lower(plans.zb_h1(4, 8))
    found = prefixes(rows, (0, 1, 2, 3))
    forwards = [sum(action.op is Op.FORWARD for action in row) for row in found]
    assert forwards == [4, 3, 2, 0]
    everything = frozenset().union(*found)
    sent = {(a.virtual_stage + 1, a.microbatch) for a in everything if a.op is Op.SEND_F}
    assert sent == {(a.virtual_stage, a.microbatch) for a in everything if a.op is Op.RECV_F}
    assert parse_action("3F0") not in everything
