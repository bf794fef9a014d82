"""``python tools/escapes.py [PART]``: programs whose values leave torch, run again on other inputs, beside the truth.

A program is one way out of torch (``item``, ``numpy``, a shape that data decides), at one place (an input, what an
operation made, a view, memory of the program's own), with one write around it, and one use of what left (a factor, a
branch, a size, a tensor made of it). Each is traced on one input and run again on others. A rerun has to be right, to
be refused, or to say in ``limits`` that it may be wrong: what is none of these is counted, and the exit code says so.
``PART`` is a piece of a name: only such programs run.
"""

from __future__ import annotations

import copy
import ctypes
import io
import itertools
import math
import os
import pickle
import struct
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import dlpack

import torch_vis as tv
from torch_vis.errors import TorchVisError
from torch_vis.replay.replay import same_bits

# the name as somebody has it who imported it before anything was recorded
from torch.utils.dlpack import to_dlpack as imported_to_dlpack  # isort: skip

Program = Callable[[Tensor], Any]


def _saved(y: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(y, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def _storage_file(y: Tensor) -> float:
    with tempfile.TemporaryFile() as file:
        storage: Any = y.untyped_storage()
        storage._write_file(file, True, False, 4)
        file.seek(0)
        return float(sum(file.read()))


def _read(address: int, y: Tensor) -> Any:
    """The numbers of a contiguous tensor, by its address."""
    return np.ctypeslib.as_array((ctypes.c_float * y.numel()).from_address(address))


def _raised(y: Tensor) -> float:
    try:
        torch.linalg.cholesky(torch.eye(2) * y.sum())
    except RuntimeError:
        return 0.5
    return 2.0


def _length(y: Tensor) -> int:
    return len(y[y > 0])


def _on_thread(y: Tensor) -> float:
    numbers: list[float] = []
    thread = threading.Thread(target=lambda: numbers.append(y.sum().item()))
    thread.start()
    thread.join()
    return numbers[0]


def _in_pool(y: Tensor) -> float:
    """On a thread that was there before the run."""
    return float(POOL.submit(lambda: y.sum().item()).result())


POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()


@torch.library.custom_op("torch_vis_tools::total", mutates_args=())
def _total(y: Tensor) -> float:
    return float(y.sum())


@torch.library.custom_op("torch_vis_tools::doubled", mutates_args=())
def _doubled(y: Tensor) -> tuple[Tensor, float]:
    return y * 2, float(y.sum())


def _out_of_range(y: Tensor) -> float:
    try:
        torch.ones(5).index_select(0, (y[0].detach() * 4).long())
    except (IndexError, RuntimeError):
        return 0.5
    return 2.0


def _in_fork(y: Tensor) -> float:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, struct.pack("d", float(y.detach().sum())))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    (number,) = struct.unpack("d", os.read(reader, 8))
    os.close(reader)
    os.close(writer)
    return float(number)


def _positions(y: Tensor) -> Tensor:
    return (y.relu() * 4).long()[:, :2].reshape(1, -1)


def _packed(y: Tensor) -> float:
    """What a recurrent layer gives of sequences whose lengths are numbers of a tensor."""
    lengths = (y[:, 0].abs() * 2).long().clamp(1, 4)
    sequences = torch.arange(48.0).reshape(3, 4, 4) / 48
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        sequences, lengths, batch_first=True, enforce_sorted=False
    )
    weights = [torch.full((2, 4), 0.5), torch.full((2, 2), 0.25), torch.zeros(2), torch.zeros(2)]
    out, _ = torch._VF.rnn_tanh(  # type: ignore[attr-defined]
        packed.data, packed.batch_sizes, torch.zeros(1, 3, 2), weights, True, 1, 0.0, False, False
    )
    return float(out.sum())


# what leaves, as one number
NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda y: y.sum().item(),
    "float": lambda y: float(y.sum()),
    "int": lambda y: int(y.sum() * 8),
    "index": lambda y: range(100)[(y > 0).sum()],
    "bool": lambda y: 2.0 if y.sum() > 0 else 0.5,
    "round": lambda y: round(float(y.mean()), 3),
    "complex": lambda y: complex(y.sum()).real,
    "format 0-d": lambda y: float(f"{y.sum():.3f}"),
    "tolist": lambda y: sum(y.flatten().tolist()),
    "unbind tolist": lambda y: sum(part.tolist()[0] for part in y.unbind()),
    "iterate": lambda y: float(next(iter(y.flatten()))),
    "numpy": lambda y: float(y.detach().numpy().sum()),
    "data numpy": lambda y: float(y.data.numpy().sum()),
    "asarray": lambda y: float(np.asarray(y.detach()).max()),
    "array": lambda y: float(np.array(y.detach()).max()),
    "ufunc": lambda y: float(np.add(y.detach().numpy(), 1).max()),
    "memoryview": lambda y: memoryview(y.detach().numpy().reshape(-1))[0],
    "tobytes": lambda y: float(np.frombuffer(y.detach().numpy().tobytes(), np.float32).sum()),
    "np.from_dlpack": lambda y: float(np.from_dlpack(y.detach()).sum()),
    "to_dlpack": lambda y: float(dlpack.from_dlpack(dlpack.to_dlpack(y.detach())).sum()),
    "torch.to_dlpack": lambda y: float(torch.from_dlpack(torch.to_dlpack(y.detach())).sum()),
    "imported to_dlpack": lambda y: float(torch.from_dlpack(imported_to_dlpack(y.detach())).sum()),
    "from_dlpack": lambda y: float(torch.from_dlpack(y.detach()).sum()),
    "pickle": lambda y: float(pickle.loads(pickle.dumps(y.detach())).sum()),
    "torch.save": lambda y: float(_saved(y.detach()).sum()),
    "deepcopy": lambda y: float(copy.deepcopy(y.detach()).sum()),
    "copy": lambda y: float(copy.copy(y.detach()).sum()),
    "repr": lambda y: float(sum(map(ord, repr(y)))),
    "str": lambda y: float(sum(map(ord, str(y)))),
    "format": lambda y: float(sum(map(ord, f"{y}"))),
    "data_ptr": lambda y: float(_read(y.data_ptr(), y).sum()),
    "storage data_ptr": lambda y: float(_read(y.untyped_storage().data_ptr(), y).sum()),
    "storage tolist": lambda y: sum(y.storage().tolist()),
    "storage item": lambda y: y.storage()[0],
    "untyped tolist": lambda y: float(sum(y.untyped_storage().tolist())),
    "untyped bytes": lambda y: float(sum(bytes(y.untyped_storage()))),
    "untyped clone": lambda y: float(sum(y.untyped_storage().clone().tolist())),
    "storage pickle": lambda y: sum(pickle.loads(pickle.dumps(y.storage())).tolist()),
    "storage save": lambda y: float(sum(_saved(y.untyped_storage()).tolist())),
    "storage file": _storage_file,
    "equal": lambda y: 2.0 if torch.equal(y, torch.full_like(y, 0.5)) else 0.5,
    "allclose": lambda y: 2.0 if torch.allclose(y, torch.full_like(y, 0.5)) else 0.5,
    "in": lambda y: 2.0 if 0.5 in y else 0.5,
    "any": lambda y: 2.0 if (y > 0).any() else 0.5,
    "sorted": lambda y: sorted([torch.zeros(()), *y[0]])[0].item(),
    "max": lambda y: max(y[0]).item(),
    "list index": lambda y: float([y[0, 0], y[0, 1]].index(y[0, 1])),
    "nonzero": lambda y: y.nonzero().shape[0],
    "masked_select": lambda y: y.masked_select(y > 0).numel(),
    "mask": lambda y: y[y > 0].shape[0],
    "mask len": _length,
    "unique": lambda y: y.unique().shape[0],
    "unique_consecutive": lambda y: y.flatten().unique_consecutive().size(0),
    "argwhere": lambda y: len(torch.argwhere(y > 0)),
    "bincount": lambda y: y.relu().long().flatten().bincount().shape[0],
    "repeat_interleave": lambda y: y[0].repeat_interleave((y[0] > 0).long() + 1).shape[0],
    "one_hot": lambda y: torch.nn.functional.one_hot((y > 0).long()).shape[-1],
    "nnz": lambda y: y.relu().to_sparse()._nnz(),
    "sparse values": lambda y: y.relu().to_sparse().values().shape[0],
    "csr": lambda y: y.relu().to_sparse_csr().values().shape[0],
    "pack": lambda y: torch.nn.utils.rnn.pack_padded_sequence(
        y[None], ((y > 0).any(-1).sum().clamp(1))[None], batch_first=True
    ).data.shape[0],
    "tensor_split": lambda y: torch.tensor_split(y, (y > 0).any(-1).sum()[None])[0].shape[0],
    "split of where": lambda y: len(torch.where(y > 0)[0]),
    "raised": _raised,
    "out of range": _out_of_range,
    "operator": lambda y: _total(y.detach()),
    "operator, and a tensor": lambda y: _doubled(y.detach())[1],
    "thread": _on_thread,
    "pool": _in_pool,
    "fork": _in_fork,
    "packed": _packed,
    "signed zero": lambda y: math.copysign(2.0, (y[0, 0] * 0).item()),
    "sparse size": lambda y: torch.sparse_coo_tensor(_positions(y), torch.ones(_positions(y).numel())).shape[0],
    "csr size": lambda y: torch.sparse_csr_tensor(
        torch.tensor([0, 1]), _positions(y)[0, -1:], torch.ones(1)
    ).shape[1],
}  # fmt: skip

# what leaves, as a tensor that comes back
TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor of list": lambda y: torch.tensor(y.tolist()),
    "tensor of array": lambda y: torch.tensor(y.detach().numpy()),
    "tensor of 0-d": lambda y: torch.tensor([y.sum(), y.max(), y.min(), y.mean()]),
    "tensor of mixed": lambda y: torch.tensor([[1.0, y.sum()], [y.max(), 2.0]]).flatten(),
    "tensor of generated": lambda y: torch.tensor([part.sum() for part in y.t()]),
    "as_tensor": lambda y: torch.as_tensor([y.sum(), y.max(), y.min(), y.mean()]),
    "asarray": lambda y: torch.asarray([y.sum(), y.max(), y.min(), y.mean()]),
    "new_tensor": lambda y: y.new_tensor([y.sum(), y.max(), y.min(), y.mean()]),
    "Tensor": lambda y: torch.Tensor([y.sum(), y.max(), y.min(), y.mean()]),
    "FloatTensor": lambda y: torch.FloatTensor([y.sum(), y.max(), y.min(), y.mean()]),
    "new": lambda y: y.new([y.sum(), y.max(), y.min(), y.mean()]),
    "tensor of ints": lambda y: torch.tensor([(y > 0).sum(), (y > 1).sum(), (y > 2).sum(), 1]),
    "from_numpy": lambda y: torch.from_numpy(y.detach().numpy()),
    "from_numpy copy": lambda y: torch.from_numpy(y.detach().numpy() * 2),
    "frombuffer": lambda y: torch.frombuffer(bytearray(y.detach().numpy().tobytes()), dtype=torch.float32),
    "dlpack": lambda y: dlpack.from_dlpack(dlpack.to_dlpack(y.detach())),
    "torch.from_dlpack": lambda y: torch.from_dlpack(y.detach()),
    "imported dlpack": lambda y: torch.from_dlpack(imported_to_dlpack(y.detach())),
    "pickle": lambda y: pickle.loads(pickle.dumps(y.detach())),
    "torch.save": lambda y: _saved(y.detach()),
    "deepcopy": lambda y: copy.deepcopy(y.detach()),
    "copy": lambda y: copy.copy(y.detach()),
    "address": lambda y: torch.from_numpy(_read(y.data_ptr(), y).copy()),
    "storage clone": lambda y: torch.tensor([]).set_(y.storage().clone()),
    "untyped clone": lambda y: torch.tensor([]).set_(y.untyped_storage().clone(), 0, y.shape, y.stride()),
}  # fmt: skip


# where it leaves: an input, what an operation made, views of it, and memory of the program's own
def _made(x: Tensor) -> Tensor:
    return (x * 3 - 1).contiguous()


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "input": lambda x: x,
    "made": _made,
    "view": lambda x: _made(x)[:2],
    "data": lambda x: _made(x).data,
    "constant": lambda x: torch.full((3, 4), 0.25),
}


# what is written around it: before the value leaves, or after, by torch or through what was given away
class Write(NamedTuple):
    """What is done to a tensor before its value leaves and after."""

    before: Callable[[Tensor, Tensor], Any]
    after: Callable[[Tensor, Tensor], Any]


def _nothing(y: Tensor, x: Tensor) -> None:
    pass


def _through_numpy(y: Tensor, x: Tensor) -> None:
    y.detach().numpy()[0] = 7.0


def _through_address(y: Tensor, x: Tensor) -> None:
    _read(y.data_ptr(), y)[:2] = 5.0


def _through_dlpack(y: Tensor, x: Tensor) -> None:
    np.from_dlpack(y.detach())
    torch.from_dlpack(y.detach()).fill_(4.0)


WRITES: dict[str, Write] = {
    "no write": Write(_nothing, _nothing),
    "write before": Write(lambda y, x: y.mul_(x.mean()), _nothing),
    "write after": Write(_nothing, lambda y, x: y.add_(x.mean())),
    "constant before": Write(lambda y, x: y.add_(1), _nothing),
    "numpy before": Write(_through_numpy, _nothing),
    "numpy after": Write(_nothing, _through_numpy),
    "address after": Write(_nothing, _through_address),
    "dlpack after": Write(_nothing, _through_dlpack),
    "apply_": Write(lambda y, x: y.data.apply_(lambda number: number * 2), _nothing),
    "map_": Write(lambda y, x: y.data.map_(y.data.clone(), lambda a, b: a + b), _nothing),
}


# what becomes of a number that left
USES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "factor": lambda x, number: x * number,
    "branch": lambda x, number: x * 2 if number > 1 else x - 1,
    "size": lambda x, number: x.sum() + torch.ones(int(abs(number)) % 7 + 1),
    "filled": lambda x, number: x + torch.full((4,), float(number)),
    "tensor": lambda x, number: x + torch.tensor([number, 1.0, 2.0, 3.0]),
    "chosen": lambda x, number: x[int(abs(number)) % 3],
    "loop": lambda x, number: sum((x * turn for turn in range(int(abs(number)) % 5)), x),
}


def programs() -> Iterator[tuple[str, Program]]:
    """Every program by its name."""
    for (place, at), (around, write) in itertools.product(PLACES.items(), WRITES.items()):
        uses = USES if write is WRITES["no write"] else {name: USES[name] for name in ("factor", "branch")}
        for (way, leave), (use, used) in itertools.product(NUMBERS.items(), uses.items()):
            yield f"{way} / {place} / {around} / {use}", _number_program(at, write, leave, used)
        for way, again in TENSORS.items():
            yield f"back: {way} / {place} / {around}", _tensor_program(at, write, again)
    for around, write in WRITES.items():
        yield f"late: numpy / {around}", _late_program(write)


def _number_program(
    at: Callable[[Tensor], Tensor], write: Write, leave: Callable[[Tensor], Any], use: Callable[..., Tensor]
) -> Program:
    def program(x: Tensor) -> Any:
        y = at(x)
        write.before(y, x)
        number = leave(y)
        write.after(y, x)
        return use(x, number), y + 1

    return program


def _tensor_program(
    at: Callable[[Tensor], Tensor], write: Write, again: Callable[[Tensor], Tensor]
) -> Program:
    def program(x: Tensor) -> Any:
        y = at(x)
        write.before(y, x)
        other = again(y)
        write.after(y, x)
        return x.sum() + other.float() * 2, y + 1

    return program


def _late_program(write: Write) -> Program:
    """What was given away is read after a write that torch sees."""

    def program(x: Tensor) -> Any:
        y = _made(x)
        array = y.numpy()
        write.before(y, x)
        write.after(y, x)
        return x * float(array.sum()), y + 1

    return program


FIRST = torch.full((3, 4), 0.5)
# the same again, others of the same sign, some that go another way
OTHERS = {
    "same": FIRST,
    "near": FIRST + torch.arange(12.0).view(3, 4) / 16,
    "mixed": torch.arange(12.0).view(3, 4) / 4 - 1,
    "negative": torch.full((3, 4), -2.0),
}


def outcome(program: Program, t: Any, other: Tensor) -> str:
    """What a rerun on another input is: right, refused, told, or wrong."""
    try:
        truth = program(other.clone())
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError, TypeError):
        return "no truth"
    try:
        run = t.run(other.clone())
    except TorchVisError:
        return "refused"
    same = all(same_bits(a, b) for a, b in zip(run.output, truth, strict=True))
    if same:
        return "right" if not run.limits else "right, told"
    return "told" if run.limits else "WRONG"


def tried(chosen: Callable[[str], bool] = lambda name: True) -> Iterator[tuple[str, str, str]]:
    """Every program with every other input: the two names, and how the rerun came out."""
    warnings.simplefilter("ignore")
    for name, program in programs():
        if not chosen(name):
            continue
        try:
            t = tv.trace(program, FIRST.clone())
        except TorchVisError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue  # no program: a view of it cannot be resized, say
        for which, other in OTHERS.items():
            yield name, which, outcome(program, t, other)


def main(part: str = "") -> int:
    """Run the programs and print the counts, and what was wrong in silence."""
    counts: Counter[str] = Counter()
    for name, which, how in tried(lambda name: part in name):
        counts[how] += 1
        if how == "WRONG":
            print(f"wrong in silence: {name} / {which}")
    print(f"{sum(counts.values()):,} reruns: {', '.join(f'{n:,} {how}' for how, n in counts.most_common())}")
    return 1 if counts["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
