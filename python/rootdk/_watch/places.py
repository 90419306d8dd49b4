"""Where in a model a thread is: which of its modules are running, which step that is, and which calls it has seen
there.

A step is a call of the model. Where only parts of it are called (an encoder inside generate(), the parts that a
training_step calls), a step ends when a part is called again. What backward computes again for a checkpoint belongs to
the step that computed it first.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import threading
import weakref
from typing import Any, Callable, Collection, Iterator, Optional, Sequence

import torch
from torch import Tensor

from .products import plain_data

_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)
_DYNAMO = os.path.join("torch", "_dynamo", "eval_frame.py")
_FUSED, _SOFTMAX = "scaled_dot_product_attention", ("softmax", "exp")
_PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")  # of two tensors; a layer's are linear
_RECORDED = (_FUSED, *_SOFTMAX, *_PRODUCTS)
OUTSIDE = "(outside)"  # the name of what no module of the model has called
_MOST_INPUTS = 1 << 16  # remembered for checkpoints: of some hundred modules in some hundred steps


def in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


class Place(threading.local):
    """Of one watch in one thread."""

    def __init__(self) -> None:
        self.stack: list[str] = []  #: names of the modules that are running, the innermost last
        self.modules: list[torch.nn.Module] = []
        self.inputs: list[Sequence[Tensor]] = []  #: and the tensors they were called with
        self.seen: list[int] = []  #: how many calls had been seen, or named as not seen, when each began
        self.noticed = 0
        self.step = -1
        self.known = True  #: False while backward computes something again, of which step nobody knows
        self.parts: set[str] = set()  #: what was called on its own in this step
        self.calls: dict[str, int] = {}  #: of attention in this step, by module
        self.opened = False  #: whether the watch was opened in this thread
        self.mode = False  #: whether entering the model put the mode onto this thread's stack
        self.started = 0.0  #: when it did

    def drop_interrupted(self, entering: Optional[torch.nn.Module] = None) -> bool:
        """Takes modules off the stack that are not running any more: PyTorch calls no hook when KeyboardInterrupt, or
        anything else that is no Exception, leaves a module. Whether there were any."""
        count = len(self.stack)
        while self.stack and not _runs(self.modules[-1], 2 if self.modules[-1] is entering else 1):
            self.pop()
        return len(self.stack) < count

    def in_graph(self) -> Optional[torch.nn.Module]:
        """The compiled module, or the one that called a compiled function, if dynamo has taken over since the innermost
        module was called: what it compiled calls no hook, so that nothing says which of the modules inside is
        running."""
        frame: Any = sys._getframe(1)
        taken_over = False
        while frame is not None and self.modules:
            code = frame.f_code
            if code.co_name == "compile_wrapper" and code.co_filename.endswith(_DYNAMO):
                taken_over = True
            elif code.co_name == "_call_impl" and frame.f_locals.get("self") is self.modules[-1]:
                return self.modules[-1] if taken_over else None
            elif taken_over and code.co_name == "_wrapped_call_impl":
                module = frame.f_locals.get("self")
                if isinstance(module, torch.nn.Module) and is_compiled(module):
                    return module
            frame = frame.f_back
        return None

    def pop(self) -> tuple[str, int]:
        self.modules.pop()
        self.inputs.pop()
        return self.stack.pop(), self.seen.pop()


def _runs(module: torch.nn.Module, times: int) -> bool:
    """Whether this thread is in so many calls of that module. Where dynamo goes on after a break in its graph, the
    frames are its own and say nothing."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name == "_call_impl" and frame.f_locals.get("self") is module:
            times -= 1
            if times == 0:
                return True
        elif name.startswith("torch_dynamo_resume_in_"):
            return True
        frame = frame.f_back
    return False


@dataclasses.dataclass
class _Input:
    """What a module was called with, for a checkpoint that calls it again."""

    tensor: weakref.ReferenceType[Tensor]
    step: Optional[int]  # None: two steps gave it the same tensor, and nothing says which of them is computed again
    done: bool = False  # whether backward has


class Modules:
    """The modules of a watched model, by name, with hooks that keep each thread's Place. `begin` and `end` are told
    when a thread enters the model and leaves it, `interrupted` when it is found to have left without a word, `unseen`
    of modules that look like attention in which none was seen, `layer_gave` of what linear layers give whose weights
    are not plain tensors, which no call shows. A module that takes no hooks, as one of torch.jit, runs
    as part of the one that calls it."""

    def __init__(
        self,
        model: torch.nn.Module,
        begin: Callable[[], None],
        end: Callable[[Any], None],
        interrupted: Callable[[], None],
        unseen: Callable[[str, str], None],
        layer_gave: Callable[[Any], None],
    ):
        self.place = Place()
        self.step = -1
        self._begin, self._end, self._interrupted, self._unseen = begin, end, interrupted, unseen
        self._layer_gave = layer_gave
        self._lock = threading.Lock()
        # thread → step and calls, while the model itself runs there
        self._running: dict[int, tuple[int, dict[str, int]]] = {}
        self._inputs: dict[tuple[str, int], _Input] = {}  # by module and where its input lies
        self._hooks: list[Any] = []
        self._model = model
        self._harmless: set[str] = set()  # parts that are known to compute no attention
        self._names = {id(module): name for name, module in model.named_modules()}
        attention = (name for name, module in model.named_modules() if _ATTENTION.search(type(module).__name__))
        self.attention = dict.fromkeys(attention)  #: names, in their order
        #: where a call should have shown something: in these, else in the model itself, if it says when it is called
        self.expected = [*self.attention] or ([] if isinstance(model, torch.jit.ScriptModule) else ["(root)"])
        try:
            for name, module in model.named_modules():
                self._hooks += self._hooked(name, module)
        except BaseException:
            self.remove()
            raise

    def _hooked(self, name: str, module: torch.nn.Module) -> list[Any]:
        hooks: list[Any] = []
        try:
            hooks.append(module.register_forward_pre_hook(Hook(self._enter, name, module), with_kwargs=True))
            hooks.append(module.register_forward_hook(Hook(self._leave, name, module), always_call=True))
        except BaseException as error:
            for hook in hooks:
                hook.remove()
            if not isinstance(error, Exception):
                raise
            return []
        return hooks

    def blamed(self, graph: torch.nn.Module) -> Optional[str]:
        """Whose name what runs in a graph is to be told under; None where `closed` names modules inside of it."""
        name = self._names.get(id(graph), self.place.stack[-1])
        return None if is_compiled(graph) and any(_within(name, inner) for inner in self.attention) else name

    def called_compiled(self) -> bool:
        """Whether a module of the model that was compiled in place is running, whose hooks are not called."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            module = frame.f_locals.get("self") if frame.f_code.co_name == "_wrapped_call_impl" else None
            if isinstance(module, torch.nn.Module) and id(module) in self._names and is_compiled(module):
                return True
            frame = frame.f_back
        return False

    def closed(self, seen: Collection[str], unseen: Collection[str]) -> Iterator[tuple[str, str]]:
        """Names of what may be attention where no hook is called, with the reason: of modules that look like it, else
        of the part that was compiled or scripted, unless it is known to hold none or something in it was seen or
        named."""
        for part, module, where in _closed_parts(self._model):
            alike = [name for name in self.attention if _within(part, name)]
            yield from ((name, where) for name in alike if name not in seen)
            told = any(_within(part, name) for name in (*seen, *unseen) if name != OUTSIDE)
            told = told or any(_within(name, part) for name in unseen if name in self.attention)
            if alike or told or part in self._harmless:
                continue
            if _may_attend(module):
                yield part, f"{where}: what it computes cannot be followed"
            else:
                self._harmless.add(part)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _enter(self, name: str, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        place = self.place
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        self.drop_interrupted(module)
        if not place.stack:
            self._outermost(name, tensors)
            self._begin()
        if tensors and not in_backward() and (module.training or torch.is_grad_enabled()):
            self._remember(name, tensors[0])
        place.stack.append(name)
        place.modules.append(module)
        place.inputs.append(tensors)
        place.seen.append(place.noticed)

    def _leave(self, name: str, module: torch.nn.Module, args: Any, output: Any) -> None:
        place = self.place
        if isinstance(module, torch.nn.Linear) and not plain_data(module.weight):
            self._layer_gave(output)
        while place.stack:
            left, before = place.pop()
            if left == name:
                # Where a module inside of it was named, the name of this one adds nothing.
                if name in self.attention and place.noticed == before and not in_backward():
                    place.noticed += 1
                    self._unseen(name, f"{type(module).__name__} computed no attention that could be followed")
                break
        if not place.stack:
            self._running.pop(threading.get_ident(), None)
            self._end(output)

    def drop_interrupted(self, entering: Optional[torch.nn.Module] = None) -> None:
        """Forgets modules that were left without a word."""
        if self.place.drop_interrupted(entering) and not self.place.stack:
            self._running.pop(threading.get_ident(), None)
            self._interrupted()

    def _outermost(self, name: str, tensors: Sequence[Tensor]) -> None:
        place = self.place
        if in_backward():
            found = self._inputs.get((name, tensors[0].data_ptr())) if tensors else None
            place.known = found is not None and found.step is not None
            place.step = self.step
            if found is not None:
                found.done = True
                place.step = self.step if found.step is None else found.step
            return
        place.known = True
        if name != "" and len(self._running) == 1:  # a thread that the model has started: a replica, a part
            ((place.step, place.calls),) = self._running.values()
            place.parts = set()
            return
        if name == "" or name in place.parts or not place.parts:
            with self._lock:
                self.step += 1
                place.step = self.step
            place.parts, place.calls = set(), {}
        place.parts.add(name)
        if name == "":
            self._running[threading.get_ident()] = place.step, place.calls

    def _remember(self, name: str, x: Tensor) -> None:
        try:
            where = x.data_ptr()
        except RuntimeError:  # a tensor without memory, under a transform
            return
        if len(self._inputs) >= _MOST_INPUTS:
            with self._lock:
                self._inputs = dict(list(self._inputs.items())[_MOST_INPUTS // 2 :])
        before = self._inputs.get((name, where))
        step: Optional[int] = self.place.step
        if before is not None and not before.done and before.step != step and before.tensor() is not None:
            step = None  # that tensor is still there, so this is the same memory, and backward has not been to it yet
        self._inputs[name, where] = _Input(weakref.ref(x), step)


class Hook:
    """One hook of one module. Copies of a watched model, pickled or deep, are not watched: EMA and reference models
    have the same names."""

    def __init__(self, call: Callable[..., None], name: str, module: torch.nn.Module):
        self.call, self.name, self.module = call, name, weakref.ref(module)

    def __call__(self, module: torch.nn.Module, *rest: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if module is self.module() or getattr(module, "_is_replica", False):
            self.call(self.name, module, *rest)

    def __reduce__(self) -> tuple[Any, ...]:
        return _silence, ()


def _silence() -> Callable[..., None]:
    return _silent


def _silent(*_: Any) -> None:
    """What is left of a hook in a copy."""


def is_compiled(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _within(outer: str, name: str) -> bool:
    return outer in ("", name) or name.startswith(f"{outer}.")


def _closed_parts(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """The outermost modules that torch.compile or torch.jit has taken over, whose insides call no hook."""
    found: list[str] = []
    for name, module in model.named_modules():
        scripted = isinstance(module, torch.jit.ScriptModule)
        if (scripted or is_compiled(module)) and not any(_within(outer, name) for outer in found):
            found.append(name)
            yield name, module, "inside torch.jit" if scripted else "inside torch.compile"


def _may_attend(part: torch.nn.Module) -> bool:
    """Whether a part without modules that look like attention may compute it all the same. Of PyTorch's own modules
    none does, and what torch.jit has recorded can be read."""
    if isinstance(part, torch.jit.ScriptModule):
        graph: Any = part.inlined_graph
        has = {name for name in _RECORDED if graph.findAllNodes(f"aten::{name}", True)}
        return _FUSED in has or not has.isdisjoint(_SOFTMAX) and not has.isdisjoint(_PRODUCTS)
    return any(
        not type(module).__module__.startswith("torch.nn.") and type(module).__name__ != "OptimizedModule"
        for module in part.modules()
    )


def label_of(place: Place, root: str) -> Optional[str]:
    """Who calls; a second call from the same module in one step gets a number. None where backward computes one of
    several calls again, and nothing says which."""
    name = place.stack[-1] if place.stack else ""
    name = name or root
    if in_backward():
        return name if place.known else None
    count = place.calls[name] = place.calls.get(name, 0) + 1
    return name if count == 1 else f"{name}#{count}"
