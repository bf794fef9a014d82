"""Activations of a data set: written in shards, whole after any interruption, and read as one array."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit import extraction
from tests.kit.extraction import killed_until_done, readable


@pytest.fixture
def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(100, 8, generator=torch.Generator().manual_seed(1))


def test_arrays_are_what_the_modules_gave(
    model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path
) -> None:
    batches = rows.split(7)
    acts = tv.extract(model, batches, keep=["0", "1.input", "2[:, 1]"], to=tmp_path, shard_bytes=2000)
    with torch.no_grad():
        first = torch.cat([model[0](batch) for batch in batches])
        last = torch.cat([model(batch) for batch in batches])
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert acts.complete and acts.samples == 100
    assert torch.equal(acts["0"].tensor(), first) and torch.equal(acts["1.input"].tensor(), first)
    assert torch.equal(acts["2[:, 1]"].tensor(), last[:, 1])
    again = tv.open_activations(tmp_path)["0"]
    assert again.shape == (100, 16) and again.dtype == torch.float32
    for index in (
        5,
        -1,
        slice(3, 40),
        slice(None, None, 9),
        [7, 3, 3],
        (slice(2, 60), 4),
        torch.arange(100) > 50,
    ):
        assert torch.equal(again[index], first[index])
    assert np.array_equal(np.asarray(again), first.numpy())
    assert torch.equal(torch.cat(list(again.batches())), first)
    assert again.samples is not None and again.samples.tolist() == list(range(100))
    assert again.to_pandas().shape == (100, 16)


def test_shards_are_safetensors_files(model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tv.extract(model, rows.split(32), keep="0", to=tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    (tensor,) = load_file(file).values()
    with torch.no_grad():
        assert torch.equal(tensor, torch.cat([model[0](batch) for batch in rows.split(32)]))


def test_batches_of_every_kind(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
            return self.fc(x) * (1 if scale is None else scale)

    net, x = Net(), torch.randn(10, 4)
    data = torch.utils.data.TensorDataset(x, torch.rand(10, 1), torch.arange(10))
    kinds: dict[str, Any] = {
        "tensors": x.split(3),
        "pairs": torch.utils.data.DataLoader(data, batch_size=3),
        "names": [{"x": part} for part in x.split(3)],
        "called": [["a", "b"], ["c"]],
    }
    calls = {"called": lambda model, batch: model(x[: len(batch)])}
    for name, batches in kinds.items():
        acts = tv.extract(net, batches, keep="fc", to=tmp_path / name, call=calls.get(name))
        assert acts.samples == (3 if name == "called" else 10)
        if name != "called":
            assert torch.allclose(acts["fc"].tensor(), net.fc(x), atol=1e-6)


def test_reused_modules_containers_and_sequences_of_any_length(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)
            self.rnn = torch.nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.rnn(self.fc(self.fc(x)))

    net = Net()
    batches = [torch.randn(2, length, 4) for length in (5, 3, 5)]
    acts = tv.extract(net, batches, keep=["fc", "fc.input", "rnn"], to=tmp_path, dim={"rnn.output.1.0": 1})
    assert {*acts} == {
        "fc:0", "fc:1", "fc:0.input", "fc:1.input", "rnn.output.0", "rnn.output.1.0", "rnn.output.1.1",
    }  # fmt: skip
    assert acts["fc:0"].shape == (6, None, 4)
    for row, sample in enumerate(sample for batch in batches for sample in batch):
        assert torch.allclose(acts["fc:0"][row], net.fc(sample), atol=1e-6)
        assert torch.allclose(acts["fc:1"][row], net.fc(net.fc(sample)), atol=1e-6)
    with pytest.raises(tv.errors.UsageError, match="padded"):
        acts["fc:0"].tensor()
    assert acts["fc:0"].padded().shape == (6, 5, 4) and not acts["fc:0"].padded()[2, 3:].any()
    # the hidden state has samples along its second dimension
    assert acts["rnn.output.1.0"].shape == (6, 1, 3)
    assert acts["rnn.output.1.0"].samples is not None
    assert acts["rnn.output.1.1"].samples is None, "one row for each layer says nothing of samples"
    # what is listed can be given as a selector
    again = tv.extract(net, batches, keep="fc:1.input", to=tmp_path / "again")
    assert torch.equal(again["fc:1.input"][4], acts["fc:1.input"][4])


def test_rows_of_nested_tensors_are_in_order(tmp_path: Path) -> None:
    parts = [torch.randn(length, 4) for length in (2, 3, 2, 1)]
    batches = [torch.nested.nested_tensor(parts[:3]), torch.nested.nested_tensor(parts[3:])]
    net = torch.nn.Sequential(torch.nn.Linear(4, 2))
    acts = tv.extract(net, batches, keep="0", to=tmp_path)
    assert [len(row) for row in acts["0"]] == [2, 3, 2, 1]
    assert all(torch.allclose(row, net(part), atol=1e-6) for row, part in zip(acts["0"], parts))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64])
def test_every_dtype_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    rows = torch.randn(9, 3).to(dtype)
    acts = tv.extract(torch.nn.Sequential(torch.nn.Identity()), rows.split(4), keep="0", to=tmp_path)
    assert acts["0"].dtype == dtype and torch.equal(acts["0"].tensor(), rows)


def test_the_model_is_as_before(model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path) -> None:
    before = [torch.get_rng_state(), torch.is_grad_enabled(), dict(model.state_dict())]
    tv.extract(model, rows.split(9), keep="1", to=tmp_path)
    assert torch.equal(before[0], torch.get_rng_state()) and torch.is_grad_enabled() is before[1]  # type: ignore[arg-type]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert "forward" not in vars(model)


# Interruptions


def test_a_loader_or_a_model_that_raises_leaves_what_was_computed(
    model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path
) -> None:
    def broken() -> Any:
        yield from rows[:50].split(10)
        raise RuntimeError("no more data")

    with pytest.raises(RuntimeError, match="no more data"):
        tv.extract(model, broken(), keep="0", to=tmp_path)
    acts = tv.open_activations(tmp_path)
    assert len(acts["0"]) == 50 and not acts.complete
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        tv.extract(model, [*rows[:60].split(10), torch.ones(2, 3)], keep="0", to=tmp_path)
    assert len(tv.open_activations(tmp_path)["0"]) == 60
    acts = tv.extract(model, rows.split(10), keep="0", to=tmp_path)
    assert acts.complete
    with torch.no_grad():
        assert torch.equal(acts["0"].tensor(), torch.cat([model[0](batch) for batch in rows.split(10)]))


def test_done_batches_are_not_run_again(
    model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path
) -> None:
    tv.extract(model, rows[:60].split(10), keep="0", to=tmp_path)
    calls: list[int] = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        acts = tv.extract(model, rows.split(10), keep="0", to=tmp_path)
    finally:
        handle.remove()
    assert len(calls) == 4 and acts.samples == 100


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loader": "shuffled"}, "batch 0 of the loader is not the one"),
        ({"loader": "larger"}, "batch 0 of the loader is not the one"),
        ({"loader": "fewer"}, "holds 10 batches and the loader gave 4"),
        ({"keep": "1"}, "another extraction: its keep"),
        ({"weights": True}, "another extraction: its weights"),
    ],
)
def test_another_extraction_is_refused(
    changed: dict[str, Any], message: str, model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path
) -> None:
    tv.extract(model, rows.split(10), keep="0", to=tmp_path)
    loaders = {"shuffled": rows.flip(0).split(10), "larger": rows.split(20), "fewer": rows[:40].split(10)}
    if changed.get("weights"):
        with torch.no_grad():
            model[2].bias += 1
    with pytest.raises(tv.errors.UsageError, match=message):
        tv.extract(
            model,
            loaders.get(changed.get("loader", ""), rows.split(10)),
            keep=changed.get("keep", "0"),
            to=tmp_path,
        )
    assert len(tv.open_activations(tmp_path)["0"]) == 100


def test_killed_at_random_moments(tmp_path: Path) -> None:
    written = killed_until_done(tmp_path, 6, seed=0)
    assert written == sorted(written), "what was on the disk stays"
    assert any(0 < count < extraction.SAMPLES for count in written), "no kill met it at work"
    acts = tv.open_activations(tmp_path)
    assert acts.complete and readable(tmp_path) == extraction.SAMPLES
    net = extraction.model()
    with torch.no_grad():
        whole = torch.cat([net(batch) for batch in extraction.samples().split(7)])
    assert torch.equal(acts["2"].tensor(), whole)


def test_every_place_where_a_journal_can_be_cut(
    model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path
) -> None:
    acts = tv.extract(model, rows.split(10), keep="0", to=tmp_path, shard_bytes=1300)
    journal = tmp_path / "rank-0.jsonl"
    text = journal.read_bytes()
    expected = acts["0"].tensor().clone()
    first = text.index(b"\n") + 1
    for end in {
        first,
        first + 1,
        len(text) // 2,
        len(text) - 2,
        len(text) - 1,
        *range(first, len(text), 397),
    }:
        journal.write_bytes(text[:end])
        assert torch.equal(tv.open_activations(tmp_path)["0"].tensor(), expected)
        assert torch.equal(
            tv.extract(model, rows.split(10), keep="0", to=tmp_path, shard_bytes=1300)["0"].tensor(), expected
        )
        assert journal.read_bytes() == text


def test_a_full_disk_leaves_what_was_written(tmp_path: Path) -> None:
    child = extraction.born(tmp_path, largest=3000)
    child.join()
    assert child.exitcode == 1
    said = (tmp_path / "said.txt").read_text()
    assert said == f"cannot write {tmp_path / 'rank-0.jsonl'}: File too large"
    # the journal came to its limit; what it says is whole, and so is each shard
    written = readable(tmp_path)
    assert 0 < written < extraction.SAMPLES
    assert not list(tmp_path.glob(".torch_vis*"))
    acts = extraction.extract(tmp_path)
    assert acts.complete and readable(tmp_path) == extraction.SAMPLES


# Several processes


def _of_rank(rank: int, ranks: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    data = extraction.samples()[:101]
    sampler: Any = torch.utils.data.DistributedSampler(
        data, num_replicas=ranks, rank=rank, shuffle=True, seed=3
    )  # type: ignore[arg-type]
    loader = torch.utils.data.DataLoader(data, batch_size=6, sampler=sampler)  # type: ignore[arg-type]
    tv.extract(extraction.model(), loader, keep="0", to=folder, shard_bytes=500)


def test_ranks_write_one_set(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    processes = [context.Process(target=_of_rank, args=(rank, 3, str(tmp_path))) for rank in range(3)]
    for process in processes[:2]:
        process.start()
    for process in processes[:2]:
        process.join()
    assert not tv.open_activations(tmp_path).complete
    processes[2].start()
    processes[2].join()
    acts = tv.open_activations(tmp_path)
    # 101 samples over 3 ranks: the sampler repeats one, and the set has each once, in the order of the data
    assert acts.complete and acts.samples == 101
    assert acts["0"][:, 0].round().int().tolist() == list(range(101))
    assert torch.cat(list(acts["0"].batches()))[:, 0].round().int().tolist() == list(range(101))


def test_ranks_that_all_go_through_everything_are_refused(
    model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = torch.utils.data.DataLoader(rows, batch_size=5)  # type: ignore[arg-type]
    with pytest.raises(tv.errors.UsageError, match="DistributedSampler"):
        tv.extract(model, loader, keep="0", to=tmp_path)


def test_statistics_of_a_part_of_the_data_are_refused(
    model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data: Any = rows
    sampler: Any = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
    loader = torch.utils.data.DataLoader(data, batch_size=5, sampler=sampler)
    with pytest.raises(tv.errors.UsageError, match="each process has a part of the data"):
        tv.extract(model, loader, stats={"0": tv.stats.Mean()})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(tv.errors.UsageError, match=r"when all processes are done take tv\.stats"):
        tv.extract(model, rows.split(5), keep="0", to=tmp_path, stats={"0": tv.stats.Mean()})
    assert not list(tmp_path.iterdir())
    # where each goes through everything, that is what they are of
    mean = tv.extract(model, rows.split(5), stats={"0": tv.stats.Mean()})["0"]
    assert torch.equal(mean, tv.stats.mean(model[0](rows)))


# Bad input


def test_bad_input(model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path) -> None:
    for options, message in (
        ({"keep": "0"}, "writes to a folder"),
        ({"to": tmp_path}, "activations to keep"),
        ({"keep": "9", "to": tmp_path}, "no module or operation '9'"),
        ({"stats": {"0": "mean"}}, "it takes tv.stats.Mean"),
        ({"stats": {"0": tv.stats.CKA()}}, "is of 2 activations"),
    ):
        with pytest.raises(tv.errors.UsageError, match=message):
            tv.extract(model, rows.split(10), **options)  # type: ignore[arg-type]
    # a tensor would be gone through row by row, a dictionary by its names
    one: Any
    for one, advice in (
        (rows, r"this is one Tensor: x\.split"),
        ({"input": rows}, r"this is one dict: \[batch\]"),
    ):
        with pytest.raises(tv.errors.UsageError, match=advice):
            tv.extract(model, one, keep="0", to=tmp_path)
    with pytest.raises(tv.errors.UsageError, match="no batch"):
        tv.extract(model, [], keep="0", to=tmp_path)
    with pytest.raises(tv.errors.UsageError, match="Quantiles goes through the data more than once"):
        tv.extract(model, iter(rows.split(10)), stats={"0": tv.stats.Quantiles()})
    with pytest.raises(tv.errors.UsageError, match="sparse"):
        net = torch.nn.Sequential(torch.nn.Identity())
        tv.extract(net, [torch.eye(3).to_sparse()], keep="0", to=tmp_path / "sparse")
    with pytest.raises(tv.errors.FileError, match="holds no activations"):
        (tmp_path / "empty").mkdir()
        tv.open_activations(tmp_path / "empty")
    with pytest.raises(tv.errors.FileError, match="No such file"):
        tv.open_activations(tmp_path / "nowhere")
    acts = tv.extract(model, rows.split(10), keep="0", to=tmp_path / "acts")
    with pytest.raises(tv.errors.NoMatch, match="no activation '1'"):
        acts["1"]
    with pytest.raises(tv.errors.UsageError, match="no row 100"):
        acts["0"][100]


def test_damaged_files_say_so(model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path) -> None:
    tv.extract(model, rows.split(10), keep="0", to=tmp_path, shard_bytes=1300)
    shard, journal = tmp_path / "rank-0-000001.safetensors", tmp_path / "rank-0.jsonl"
    whole, text = shard.read_bytes(), journal.read_text()
    shard.write_bytes(whole[:-9])
    with pytest.raises(tv.errors.CorruptFile, match="is cut off"):
        tv.open_activations(tmp_path)["0"].tensor()
    shard.unlink()
    with pytest.raises(tv.errors.CorruptFile, match="has lost rank-0-000001"):
        tv.open_activations(tmp_path)
    shard.write_bytes(whole)
    for damaged in ("{}\n", "[]\n", "nonsense\n", text.replace('"float32"', '"floaty"')):
        journal.write_text(damaged)
        with pytest.raises(tv.errors.FileError):
            tv.open_activations(tmp_path)
    journal.write_text(text.replace('"version": 1', '"version": 9'))
    with pytest.raises(tv.errors.NewerFile):
        tv.open_activations(tmp_path)
    lines = text.splitlines()
    record = json.loads(lines[1]) | {"file": "../elsewhere"}
    journal.write_text("\n".join([lines[0], json.dumps(record)]) + "\n")
    with pytest.raises(tv.errors.CorruptFile, match="in the folder"):
        tv.open_activations(tmp_path)


def test_a_folder_that_is_written_again_gives_what_is_in_it_now(tmp_path: Path) -> None:
    """Its files were mapped under their names, and the next ones of these names were not looked at."""
    folder, rows = tmp_path / "acts", torch.ones(2, 3)
    first, second = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(3, 2))
    assert torch.equal(tv.extract(first, [rows], keep="0", to=folder)["0"][:], first[0](rows))
    shutil.rmtree(folder)
    assert torch.equal(tv.extract(second, [rows], keep="0", to=folder)["0"][:], second[0](rows))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version": 1', b'"version": {}'),
        (b'"ranks": 1', b'"ranks": []'),
        (b"[2, 2]", b"[true, 2]"),
        (b"[2, 2]", b"[1099511627776, 0]"),
        (b"[[0, 2, 0]]", b"[0, 2, 0]"),
        (b"[[0, 2, 0]]", b"[[7, 2, 0]]"),
        (b"[[0, 2, 0]]", b"[[0, 9223372036854775808, 0]]"),
        (b'"first": 0', b'"first": "x"'),
        (b"null]", b"0]"),
        (b"[2, 2]", b"[2" + b", 1" * 2000 + b"]"),
    ],
)
def test_a_damaged_journal_is_one_error_of_ours(tmp_path: Path, old: bytes, new: bytes) -> None:
    folder = tmp_path / "acts"
    tv.extract(nn.Sequential(nn.Linear(3, 2)), [torch.ones(2, 3)], keep="0", to=folder)
    journal = folder / "rank-0.jsonl"
    text = journal.read_bytes()
    assert old in text
    journal.write_bytes(text.replace(old, new, 1))
    with pytest.raises(tv.errors.FileError):
        acts = tv.open_activations(folder)
        str(acts), acts["0"][:]


def test_a_journal_asks_for_no_more_rows_than_its_folder_has_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "acts"
    tv.extract(nn.Sequential(nn.Linear(3, 2)), [torch.ones(2, 3)], keep="0", to=folder)
    journal = folder / "rank-0.jsonl"
    text = journal.read_bytes()
    head, shard = text.split(b"\n")[:2]
    # rows of no elements
    many = shard.replace(b"[2, 2]", b"[9000000, 0]").replace(b"[[0, 2, 0]]", b"[[0, 9000000, 0]]")
    for lines, message in (([head, many], "is damaged"), ([head, shard, shard], "names .* twice")):
        journal.write_bytes(b"\n".join(lines) + b"\n")
        with pytest.raises(tv.errors.CorruptFile, match=message):
            tv.open_activations(folder)


def test_a_shard_that_was_cut_off_in_place_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "acts"
    acts = tv.extract(nn.Sequential(nn.Linear(3, 2)), [torch.ones(2, 3)], keep="0", to=folder)
    assert acts["0"][:].shape == (2, 2)
    os.truncate(folder / "rank-0-000000.safetensors", 0)
    with pytest.raises(tv.errors.CorruptFile):
        acts["0"][:]
    with pytest.raises(tv.errors.CorruptFile):
        tv.open_activations(folder)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_a_label_that_a_model_takes_for_an_argument_is_explained(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            if mask is not None:
                raise RuntimeError("a mask is boolean")
            return self.fc(x)  # type: ignore[no-any-return]

    model, batches = Masked(), [[torch.randn(2, 3), torch.tensor([0, 1])]]
    with pytest.raises(RuntimeError, match="boolean") as raised:
        tv.extract(model, batches, keep="fc", to=tmp_path / "a")
    assert "call=lambda model, batch: model(batch[0])" in raised.value.__notes__[0]
    acts = tv.extract(model, batches, keep="fc", to=tmp_path / "b", call=lambda model, batch: model(batch[0]))
    assert acts["fc"].shape == (2, 2)


@dataclasses.dataclass
class Words:
    x: torch.Tensor
    mask: torch.Tensor


class Pair(NamedTuple):
    mask: torch.Tensor
    x: torch.Tensor


@pytest.mark.parametrize("kind", [Words, Pair, dict])
def test_a_batch_with_the_names_of_the_arguments_is_given_by_name(
    kind: Any, rows: torch.Tensor, tmp_path: Path
) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.fc(x * mask)

    model = Masked()
    batches = [kind(x=part, mask=part > 0) for part in rows.split(16)]
    acts = tv.extract(model, batches, keep="fc", to=tmp_path)
    with torch.no_grad():
        assert torch.equal(acts["fc"][:], torch.cat([model(part, part > 0) for part in rows.split(16)]))


def test_what_the_model_was_given_of_a_batch_that_it_does_not_take_is_said(
    model: torch.nn.Sequential, rows: torch.Tensor, tmp_path: Path
) -> None:
    wrong = [
        ({"input": rows[:4], "labels": rows[:4]}, "parts 'input', 'labels'"),
        (Words(rows, rows), "of type Words"),
    ]
    for batch, told in wrong:
        with pytest.raises(TypeError) as raised:
            tv.extract(model, [batch], keep="0", to=tmp_path)
        if sys.version_info >= (3, 11):
            assert (
                told in raised.value.__notes__[0] and "call=lambda model, batch" in raised.value.__notes__[0]
            )


def test_rows_that_are_no_samples_are_told_of(tmp_path: Path) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(8, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.fc(x.flatten(0, 1)).view(*x.shape[:2], 4))

    acts = tv.extract(Flat(), torch.randn(10, 3, 8).split(4), keep=["fc", "out"], to=tmp_path)
    (told,) = acts.limits
    assert told.startswith("'fc' has 30 rows for 10 samples") and "30 rows" in str(acts)
