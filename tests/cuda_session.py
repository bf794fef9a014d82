"""What to run once on a machine with a GPU: the CUDA tests, the zoo on that torch, and the cost of a trace there.

python -m tests.cuda_session
python -m tests.cuda_session ranks    # only one rank of a job whose other ranks are not there
"""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections.abc import Callable
from types import ModuleType

import torch

import torch_vis as tv
from tests import zoo
from tests.capture import test_cuda, test_ranks_cuda
from tests.capture.timing import test_time_cuda


def attempt(name: str, run: Callable[[], object]) -> bool:
    """Run one test and print how it went."""
    try:
        run()
    except Exception as error:
        print(f"FAILED {name}: {type(error).__name__}: {str(error)[:300]}")
        print("".join(traceback.format_tb(error.__traceback__)[-3:]))
        return False
    return True


def run_tests(tests: ModuleType) -> tuple[int, int]:
    """Run the tests of a module that take no argument; how many passed, and how many there are."""
    names = [
        name for name in dir(tests) if name.startswith("test_") and name != "test_forward_and_backward_replay"
    ]
    return sum(attempt(name, getattr(tests, name)) for name in names), len(names)


def cost_of_a_step() -> None:
    """A BERT-base training step on the GPU, plain and traced, interleaved."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ids = torch.randint(0, 30000, (8, 128), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(ids).last_hidden_state.square().mean().backward()
        optimizer.step()

    plain, traced = [], []
    for _ in range(12):
        for run, into in ((step, plain), (lambda: tv.trace(step, hold=False), traced)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            into.append(time.perf_counter() - start)
    a, b = statistics.median(plain), statistics.median(traced)
    print(
        f"BERT-base step, batch 8 x 128: plain {a * 1e3:.1f} ms, trace() {b * 1e3:.1f} ms, ratio {b / a:.2f}"
    )
    t = tv.trace(step)
    print(t.check(shuffles=1))
    backward = [n for n in t.graph.nodes if n.phase == "backward"]
    print(f"backward operations linked: {sum(n.link is not None for n in backward)} of {len(backward)}")


def kernels_of_a_step() -> None:
    """The same step: kernel time of its operations against all that the profiler sees on the device."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(ids).last_hidden_state.square().mean().backward()
        optimizer.step()

    t = tv.trace(step, torch.randint(0, 30000, (8, 128), device="cuda"), repeat=5)
    found, spent = t.meta["device_time"], t.metrics["kernel_ns"].total()
    print(
        f"kernels of a BERT-base step: {len(found['kernel_name'])}, {found['unmatched']} without an operation; "
        f"{spent / 1e6:.2f} ms in operations, {found['total_ns'] / 1e6:.2f} ms in all, "
        f"ratio {spent / found['total_ns']:.4f}"
    )
    print(str(t.time()).partition("\noperators")[0])


def main() -> None:
    """Run everything and print a line for each failure and a total."""
    print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
    if sys.argv[1:] == ["ranks"]:
        print("ranks: {} of {} passed".format(*run_tests(test_ranks_cuda)))
        return
    passed = total = 0
    for training in (True, False):
        total += 1
        passed += attempt(
            "replay", lambda training=training: test_cuda.test_forward_and_backward_replay(training)
        )
    for tests in (test_cuda, test_time_cuda, test_ranks_cuda):
        more, tried = run_tests(tests)
        passed, total = passed + more, total + tried
    print(f"CUDA tests: {passed} of {total} passed")
    attempt("cost", cost_of_a_step)
    attempt("kernels", kernels_of_a_step)
    passed = total = 0
    for case in zoo.ZOO.values():

        def run(case: zoo.Case = case) -> None:
            target, args, kwargs = case.make()
            trace = tv.trace(target, *args, kwargs=kwargs, backward=case.backward)
            try:
                trace.check()
            except (tv.errors.TensorsMissing, tv.errors.CheckFailed):
                if not case.tags & {"fake", "meta", "unseen"} and case.name not in (
                    "fake_tensor_input",
                    "meta_tensor_input",
                    "numpy_write",
                ):
                    raise

        total += 1
        passed += attempt(case.name, run)
    print(f"zoo on the CPU of torch {torch.__version__}: {passed} of {total} passed")


if __name__ == "__main__":
    main()
