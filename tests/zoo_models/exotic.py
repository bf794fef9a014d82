"""Cases about tensors that are not plain and dense: complex, sparse, quantized, nested, fake, distributed."""

from __future__ import annotations

import atexit
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo_models.registry import Built, case


@case("adversarial", "complex", "view")
def complex_views() -> Built:
    """Real and imaginary parts and conjugates are lazy views of complex bytes."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        z = torch.fft.fft(x)
        conjugate = z.conj()
        pairs = torch.view_as_real(z)
        return (
            conjugate.imag * 2,
            pairs[..., 0],
            (z * conjugate).real,
            conjugate.resolve_conj().abs(),
            z.imag.neg(),
        )

    return f, (torch.randn(6, requires_grad=True),), {}


@case("adversarial", "complex", "view", "inplace", backward=False)
def complex_view_writes() -> Built:
    """Writes through `.imag` and `view_as_real` change the complex tensor, also behind a conj or neg view."""

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = torch.complex(x, x * 2)
        behind, negative = z.conj(), torch._neg_view(z.real)
        z.imag.add_(1)
        torch.view_as_real(z)[0].zero_()
        behind.mul_(2j)
        return z.clone(), behind.resolve_conj(), negative.resolve_neg()

    return f, (torch.randn(4),), {}


@case("adversarial", "sparse")
def sparse_coo() -> Built:
    """A COO matrix is built, coalesced, multiplied and made dense."""

    def f(values: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        indices = torch.tensor([[0, 1, 1, 2], [2, 0, 0, 1]])
        matrix = torch.sparse_coo_tensor(indices, values, (3, 3)).coalesce()
        return torch.sparse.mm(matrix, x), (matrix * 2).to_dense()

    return f, (torch.randn(4, requires_grad=True), torch.randn(3, 2, requires_grad=True)), {}


@case("adversarial", "sparse", backward=False)
def sparse_csr() -> Built:
    """A CSR matrix made from a dense one is multiplied with a dense matrix and vector."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        matrix = x.relu().to_sparse_csr()
        return matrix @ y, matrix.mv(y[:, 0]), matrix.values() * 2

    return f, (torch.randn(4, 4), torch.randn(4, 2)), {}


@case("adversarial", "sparse", backward=False)
def sparse_output_and_input() -> Built:
    """Sparse tensors arrive as arguments and leave as results."""

    def f(coo: Tensor, csr: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return coo + coo, csr @ coo.to_dense(), coo.coalesce().values()

    dense = torch.randn(4, 4).relu()
    return f, (dense.to_sparse(), dense.t().contiguous().to_sparse_csr()), {}


@case("adversarial", "quantized", backward=False)
def quantized_tensor() -> Built:
    """A tensor is quantized per tensor, viewed, read as integers and made float again."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
        halves = q.reshape(2, -1)
        return q, halves.dequantize() + 1, q.int_repr(), torch.relu(q)

    return f, (torch.randn(8),), {}


@case("adversarial", "quantized", backward=False)
def quantized_linear() -> Built:
    """A quantized linear layer keeps its weights in a packed object that is no tensor."""
    linear = torch.ao.nn.quantized.Linear(4, 3)
    weight = torch.quantize_per_tensor(torch.randn(3, 4), 0.05, 0, torch.qint8)
    linear.set_weight_bias(weight, torch.zeros(3))
    linear.scale, linear.zero_point = 0.1, 64

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(torch.quantize_per_tensor(x, 0.1, 64, torch.quint8)).dequantize()

    return Quantized(), (torch.randn(2, 4),), {}


@case("adversarial", "quantized", backward=False)
def dynamic_quantization() -> Built:
    """A model with dynamically quantized linear layers, whose packed weights are opaque."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}), (torch.randn(3, 4),), {}


@case("adversarial", "quantized")
def fake_quantized() -> Built:
    """Fake quantization as in quantization-aware training, with observers that write their own buffers."""
    module = nn.Sequential(nn.Linear(4, 4), torch.ao.quantization.FakeQuantize(), nn.ReLU()).train()
    return module, (torch.randn(3, 4),), {}


@case("adversarial", "nested", backward=False)
def nested_strided() -> Built:
    """A nested tensor of the strided layout goes through linear, softmax and padding."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            ragged = torch.nested.as_nested_tensor([a, b])
            out = torch.softmax(self.linear(ragged), dim=-1)
            return torch.nested.to_padded_tensor(out, 0.0), out.unbind()[1] * 2

    return Nested(), (torch.randn(2, 3), torch.randn(4, 3)), {}


@case("adversarial", "nested")
def nested_jagged() -> Built:
    """A nested tensor of the jagged layout, a Python subclass over values and offsets."""

    class Jagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            ragged = torch.nested.as_nested_tensor([a, b], layout=torch.jagged)
            out = self.linear(ragged).relu()
            return out.values() * 2, out.unbind()[1].sum()

    return Jagged(), (torch.randn(2, 3, requires_grad=True), torch.randn(4, 3)), {}


@case("adversarial", "subclass", backward=False)
def wrapper_subclass() -> Built:
    """A user's tensor subclass holds two plain tensors and dispatches to them."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        pair = TwoTensor(x, x * 2)
        out = pair.sin() + pair
        return out.a + 1, out.b

    from torch.testing._internal.two_tensor import TwoTensor

    return f, (torch.randn(3),), {}


class Labelled(Tensor):
    """A tensor with a property of its own and torch's default behaviour."""

    @property
    def label(self) -> str:
        return "labelled"


@case("adversarial", "subclass")
def function_subclass() -> Built:
    """A user's tensor subclass without a dispatch method travels through ordinary operations."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out = self.linear(x)
            assert out.label == "labelled"
            return (out * 2).as_subclass(Tensor)

    return Model(), (torch.randn(2, 3).as_subclass(Labelled),), {}


@case("adversarial", "fake", backward=False)
def fake_tensor_input() -> Built:
    """Arguments and weights are FakeTensors, which have shapes and no bytes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        x = torch.randn(2, 8)
    return model, (x,), {}


@case("adversarial", "fake", backward=False)
def meta_tensor_input() -> Built:
    """A model on the meta device computes shapes only."""
    model = nn.Sequential(nn.Linear(8, 16, device="meta"), nn.LayerNorm(16, device="meta"))
    return model, (torch.randn(2, 8, device="meta"),), {}


@case("adversarial", "dtensor")
def dtensor_world_of_one() -> Built:
    """A linear layer with DTensor weights in a one-process group redistributes its result."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = _mesh_of_one()

    class Sharded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]))

        def forward(self, x: Tensor) -> Tensor:
            spread = DTensor.from_local(x, mesh, [Replicate()])
            out = (spread @ self.weight.t()).relu()
            return out.redistribute(mesh, [Replicate()]).to_local()

    return Sharded(), (torch.randn(2, 4),), {}


@case("adversarial", "dtensor", backward=False)
def collectives() -> Built:
    """Functional and in-place collectives in a one-process group."""
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    _mesh_of_one()

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        dist.all_reduce(y)
        gathered = functional.all_gather_tensor(x, 0, dist.group.WORLD)
        return y + 1, gathered * 3

    return f, (torch.randn(4),), {}


def _mesh_of_one() -> Any:
    """The device mesh of a gloo group that holds this process alone; made once and closed at exit."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        atexit.register(close_process_group)
    return init_device_mesh("cpu", (1,))


def close_process_group() -> None:
    """Tear down the group that the distributed cases opened, if there is one."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
