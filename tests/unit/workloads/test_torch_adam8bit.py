"""8-bit AdamW of PyTorch: its state by arithmetic, and that it trains as AdamW does."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

from memprof.workloads.torch.optimizers import Adam8bit  # noqa: E402


def _trained(make: Any) -> tuple[float, Any]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    optimizer = make(net.parameters())
    inputs = torch.randn(256, 32)
    wanted = inputs[:, :1] * inputs[:, 1:2]
    for _ in range(200):
        optimizer.zero_grad()
        loss = (net(inputs) - wanted).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach()), optimizer


def test_a_moment_is_a_byte_an_element_and_a_scale_a_block() -> None:
    _, optimizer = _trained(lambda params: Adam8bit(params, lr=1e-2))
    sizes = [sum(each.nbytes for each in state.values() if torch.is_tensor(each)) for state in optimizer.state.values()]
    large = 32 * 256
    assert sizes == [2 * (large + 4 * large // 256), 2 * 4 * 256, 2 * 4 * 256, 2 * 4]


def test_it_trains_as_adamw_does() -> None:
    eight_bits, _ = _trained(lambda params: Adam8bit(params, lr=1e-2))
    exact, _ = _trained(lambda params: torch.optim.AdamW(params, lr=1e-2))
    assert eight_bits < 0.1
    assert eight_bits < exact + 0.05


def test_the_update_is_one_operation_without_temporaries_as_that_of_bitsandbytes() -> None:
    """On fake tensors, as a step is traced: what the operation allocates while it runs on the CPU does not count."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    made = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made.append(func)
            return func(*args, **(kwargs or {}))

    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(64, 64))
        optimizer = Adam8bit([weight])
        weight.grad = torch.zeros(64, 64)
        optimizer.step()
        with Watch():
            optimizer.step()
    assert [str(each) for each in made if each.namespace != "profiler"] == ["memprof.adam8bit.default"]
