"""What is said where a GPU would compute without tensor cores, and how often the library is asked; over a library that
only answers. Which problems those are: test_cuda.py."""

from __future__ import annotations

import ctypes
import threading
import warnings

import pytest
import rootdk
from rootdk import _cuda, _slow
from rootdk._description import Description, Problem
from rootdk._problem import StatsOptions
from rootdk._slow import SlowKernelWarning

LINE = "slow: forward runs without tensor cores, since it is a test: change it"


class Answers:
    """In place of the library: the kernels are slow for f32, and nothing is computed."""

    def __init__(self):
        self.asked = self.enqueued = 0
        self.real = _cuda.library()

    def rootdk_problem_init(self, problem):
        self.real.rootdk_problem_init(problem)

    def rootdk_last_error(self):
        return b"an error"

    def rootdk_cuda_missing(self):
        return b""

    def rootdk_cuda_is_fast(self, problem, inputs, which, fast):
        self.asked += 1
        ctypes.c_int32.from_address(fast).value = _cuda.CInputs.from_address(inputs).q.dtype != _cuda.DTYPES["f32"]
        return 0

    def rootdk_cuda_explain(self, problem, inputs, which, words, capacity, needed):
        q = _cuda.CInputs.from_address(inputs).q
        text = (LINE if which == 0 else LINE.replace("forward", "backward")) if 0 not in q.shape else "forward in f32"
        data = (text + "\nkernel: plain\n").encode() + b"\0"
        if capacity:
            ctypes.memmove(words, data, len(data))
        else:
            ctypes.c_size_t.from_address(needed).value = len(data)
        return 0

    def rootdk_cuda_workspace_size(self, problem, inputs, which, size):
        ctypes.c_size_t.from_address(size).value = 64
        return 0

    def rootdk_cuda_forward(self, *_):
        self.enqueued += 1
        return 0

    rootdk_cuda_backward = rootdk_cuda_forward


@pytest.fixture
def library(monkeypatch):
    answers = Answers()
    monkeypatch.setattr(_cuda, "_library", answers)
    monkeypatch.setattr(_slow, "_why", {})
    monkeypatch.setattr(_slow, "_said", set())
    monkeypatch.delenv("ROOTDK_SLOW", raising=False)
    return answers


def views(length=8, dtype="f32", address=64, dim=16):
    shape = (1, 2, length, dim)
    return [_cuda.View(address, dtype, shape, (2 * length * dim, length * dim, dim, 1))] * 3


def forward(x, device=0, stats=None, bias=None, **description):
    problem = Problem(Description(**description), stats=stats, bias=bias)
    _cuda.forward(problem, *x, x[0], None, {}, None, _cuda.Place(lambda size: (None, 64), 0, device=device))


def backward(x):
    tensors = dict.fromkeys(("q", "k", "v", "o", "lse", "d_o", "d_lse"), x[0])
    _cuda.backward(Problem(), tensors, {}, {}, _cuda.Place(lambda size: (None, 64), 0))


def said(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [x for x in seen if x.category is SlowKernelWarning]


def test_once_for_each_reason(library):
    found = said(lambda: [forward(views()) for _ in range(3)] + [forward(views(length=9))])
    assert len(found) == 1 and library.enqueued == 4
    assert str(found[0].message).startswith("forward runs without tensor cores, since it is a test: change it")
    assert found[0].filename == __file__
    assert "backward runs" in str(said(lambda: [backward(views()) for _ in range(3)])[0].message)
    assert said(lambda: backward(views())) == []


def test_the_library_is_asked_once_for_each_problem(library):
    said(lambda: [forward(views(dtype="bf16")) for _ in range(5)])
    assert library.asked == 1
    # numbers that no kernel looks at
    said(lambda: [forward(views(dtype="bf16"), factor=c, seed=7) for c in (0.1, 0.2, 0.3)])
    assert library.asked == 1
    for changed in (
        {"softcap": 5.0},
        {"dropout": 0.1},
        {"stats": StatsOptions("full", sample=4)},
        {"factor": -1.0},
        {"bias": views()[0]},
        {"alibi": (0.1, 0.2)},
        {"rule": "dk"},
    ):
        before = library.asked
        forward(views(dtype="bf16"), **changed)
        assert library.asked == before + 1, changed
    before = library.asked
    forward(views(dtype="bf16", address=72))  # where the copy engine cannot read
    forward(views(dtype="bf16"), device=1)
    forward(views(dtype="bf16", dim=8))
    assert library.asked == before + 3


def test_what_is_remembered_is_bounded(library, monkeypatch):
    monkeypatch.setattr(_slow, "_MOST", 10)
    for length in range(1, 40):
        forward(views(length, "bf16"))
    assert len(_slow._why) <= 10


def test_it_can_be_an_error_or_nothing(library, monkeypatch):
    monkeypatch.setenv("ROOTDK_SLOW", "error")
    for _ in range(2):  # every time
        with pytest.raises(SlowKernelWarning, match="since it is a test: change it"):
            forward(views())
    with pytest.raises(SlowKernelWarning, match="backward"):
        backward(views())
    assert library.enqueued == 0
    forward(views(dtype="bf16"))
    monkeypatch.setenv("ROOTDK_SLOW", "ignore")
    assert said(lambda: forward(views())) == [] and library.enqueued == 2
    monkeypatch.setenv("ROOTDK_SLOW", "loud")
    with pytest.raises(ValueError, match='ROOTDK_SLOW: "loud", but'):
        forward(views())
    monkeypatch.setenv("ROOTDK_SLOW", "")
    assert len(said(lambda: forward(views()))) == 1


def test_pythons_own_filters_count(library):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SlowKernelWarning):
            forward(views())


def test_of_nothing_nothing_is_said(library):
    assert said(lambda: forward(views(length=0))) == []


def test_two_threads_say_it_once(library):
    found = said(lambda: [t.join() for t in [_started(lambda: forward(views())) for _ in range(4)]])
    assert len(found) == 1


def _started(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_its_kind():
    assert rootdk.SlowKernelWarning is SlowKernelWarning and issubclass(SlowKernelWarning, RuntimeWarning)
    assert "SlowKernelWarning" in rootdk.__all__ and "ROOTDK_SLOW" in SlowKernelWarning.__doc__


def test_every_device_answers_for_itself(monkeypatch):
    current, asked = [0], []

    class Answers:
        def rootdk_cuda_missing(self):
            asked.append(current[0])
            return b"" if current[0] == 1 else b"device 0 is too old"

    class Guard:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            self.before, current[0] = current[0], self.device

        def __exit__(self, *_):
            current[0] = self.before

    monkeypatch.setattr(_cuda, "_library", Answers())
    monkeypatch.setattr(_cuda, "_missing", {})
    for _ in range(2):
        assert _cuda.missing(0, lambda: Guard(0)) == "device 0 is too old"
        assert _cuda.missing(1, lambda: Guard(1)) == ""
    assert asked == [0, 1] and current == [0]
    current[0] = 1
    assert _cuda.missing() == "" and asked == [0, 1, 1]
