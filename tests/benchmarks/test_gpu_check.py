import subprocess
import sys
from pathlib import Path

import gpu_check
import pytest
import torch

from fastrl.bench.synthetic_rows import spec_of

# TF32 is a matter of CUDA: without it this one is the exact one again.
COMPARISONS = {n: c for n, c in gpu_check.comparisons("cpu").items() if "engine has it" not in n}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.slow
def test_without_a_device_it_says_so_and_exits_with_2():
    done = subprocess.run(
        [sys.executable, gpu_check.__file__], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr.startswith("gpu_check.py needs a CUDA device") and done.stderr.count("\n") == 1
    )
    assert Path(gpu_check.__file__).parent.name == "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARISONS)
def test_the_cpu_agrees_with_itself(name):
    passed, text = COMPARISONS[name]()
    assert passed, text


def test_an_action_is_judged_by_the_interval_of_its_u():
    params = torch.tensor([[0.2, 0.5, 0.3]]).log().repeat(4, 1)
    u = torch.tensor([[0.1], [0.1], [0.9], [0.699]])
    action = torch.tensor([0, 1, 0, 2])
    found = gpu_check.boundary_distance(params, u, action)
    torch.testing.assert_close(
        found, torch.tensor([0.0, 0.1, 0.7, 0.001]).double(), atol=1e-6, rtol=0
    )


def test_what_is_wrong_is_noticed(monkeypatch):
    # The first of the two to compute has values that are a little off.
    vtrace = gpu_check.vtrace_appo
    wrong = iter([lambda r, reward, v, *a, **k: vtrace(r, reward, v * 1.001, *a, **k), vtrace])
    monkeypatch.setattr(gpu_check, "vtrace_appo", lambda *a, **k: next(wrong)(*a, **k))
    assert not gpu_check.check_vtrace("cpu")[0]
    assert not gpu_check.within(float("nan"), 1.0)[0]


def test_an_update_that_differs_is_noticed(monkeypatch):
    spec = spec_of("vector", "discrete")
    updated = gpu_check.updated

    def later(device, spec, dtype):
        change, metrics = updated("cpu", spec, dtype)
        return (change * 1.01 if device == "other" else change), metrics

    monkeypatch.setattr(gpu_check, "updated", later)
    assert gpu_check.check_update("cpu", spec, "f32", 1e-3)[0]
    assert not gpu_check.check_update("other", spec, "f32", 1e-3)[0]


def test_failures_and_errors_are_counted(capsys):
    def raises():
        raise RuntimeError("CUDA error: out of memory")

    checks = {"good": lambda: (True, "fine"), "bad": lambda: (False, "off"), "broken": raises}
    assert gpu_check.run_checks(checks) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "FAILED", "FAILED"]
    assert "out of memory" in lines[2]
