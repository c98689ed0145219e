"""A few parameters that tell what the optimizer's hooks cannot: clipping, staleness, skipped steps.

Up to four parameters (first, last, the two largest) carry a hook that runs when their gradient has
been accumulated; two of them carry one that runs just before. On a step that will be recorded, 64
fixed coordinates are kept when backward ends, and compared with what the optimizer is given.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwatch.record.barrier import Barrier
from gradwatch.record.coordinates import fixed_coordinates
from gradwatch.record.placement import local
from gradwatch.record.reading import as_array
from gradwatch.record.tracks import KINDS
from gradwatch.record.verdict import RAW, UNKNOWN, Verdict, judge

POSTS = 4
_EPSILON = {dtype: torch.finfo(dtype).eps for dtype in KINDS}
WIDTH = 64


class Post:
    """One sentinel parameter and what was seen at it since the optimizer last stepped."""

    def __init__(self, parameter: Tensor) -> None:
        self.ref = weakref.ref(parameter)
        self.backwards = 0
        self.version = -1
        self.scale: float | None = None
        """The loss scale of the last backward, where one is known."""
        self.sample: Tensor | None = None
        self.handles: list[Any] = []


class Sentinel:
    """Counts backward passes and samples gradients; tells of those that were thrown away."""

    def __init__(
        self,
        barrier: Barrier,
        on_backward: Callable[[], None],
        on_thrown_away: Callable[[float | None], None],
        scale: Callable[[], float | None],
    ) -> None:
        self._barrier = barrier
        self._on_backward = on_backward
        self._on_thrown_away = on_thrown_away
        self._scale = scale
        self.posts: list[Post] = []
        self.sampling = False
        self._awake = True
        self.stale: bool | None = None
        self.left_over: Tensor | None = None
        """On an accelerator, what was there before the first backward: stale unless it is zero."""
        self.averaged_late = False
        """True under DDP: gradients are averaged only after the hooks have run."""

    @property
    def backwards(self) -> int:
        """Backward passes since the optimizer last stepped."""
        return max((post.backwards for post in self.posts), default=0)

    def elect(self, parameters: Sequence[Tensor]) -> None:
        """Choose the posts anew, unless the ones there are would be chosen again."""
        chosen = _choose(parameters)
        if [id(p) for p in chosen] == [id(post.ref()) for post in self.posts]:
            return
        self.dismiss()
        self.posts = [Post(parameter) for parameter in chosen]
        if self._awake:
            self._mount_all()

    def set_awake(self, awake: bool) -> None:
        """Put the hooks up, or take them off for steps on which nobody will ask."""
        if awake is self._awake:
            return
        self._awake = awake
        if awake:
            self._mount_all()
        else:
            self._unmount_all()

    def dismiss(self) -> None:
        """Take every hook away and forget the posts."""
        self._unmount_all()
        self.posts = []

    def _mount_all(self) -> None:
        for index, post in enumerate(self.posts):
            if (parameter := post.ref()) is not None and parameter.requires_grad:
                # The last ones: a backward pass comes to them first.
                self._mount(post, parameter, watches_start=index >= len(self.posts) - 2)

    def _unmount_all(self) -> None:
        for post in self.posts:
            for handle in post.handles:
                handle.remove()
            post.handles.clear()

    def stepped(self) -> None:
        """The optimizer has stepped: what comes now belongs to the next step."""
        self.stale = self.left_over = None
        for post in self.posts:
            post.backwards = 0
            post.sample = None

    def judge(self) -> Verdict:
        """Compare what backward left with what the gradients are now."""
        pairs = [pair for pair in self.pairs() if pair[1].is_cpu]
        if not pairs:
            return UNKNOWN if self.posts else RAW
        if all(torch.equal(was, now) for was, now in pairs):
            return RAW  # by far the most frequent case
        return judge([(as_array(was), as_array(now), _EPSILON[now.dtype]) for was, now in pairs])

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """At each post, the coordinates at the end of backward and the same ones now."""
        found = []
        for post in self.posts:
            parameter = post.ref()
            if post.sample is None or parameter is None or parameter.grad is None:
                continue
            now = _sample(parameter.grad)
            if now is not None and now.dtype is post.sample.dtype:
                found.append((post.sample, now))
        return found

    def _mount(self, post: Post, parameter: Tensor, *, watches_start: bool) -> None:
        barrier = self._barrier

        def before(_: Tensor) -> None:
            barrier.run(self._before, post)

        def after(_: Tensor) -> None:
            barrier.run(self._after, post)

        # Parameters are pickled and copied without their hooks; torch warns unless told it may.
        before.__torch_unserializable__ = True  # type: ignore[attr-defined]
        if watches_start:
            post.handles.append(parameter.register_hook(before))  # type: ignore[no-untyped-call]
        handle = parameter.register_post_accumulate_grad_hook(after)  # type: ignore[no-untyped-call]
        post.handles.append(handle)

    def _before(self, post: Post) -> None:
        """A gradient is about to be added to this parameter."""
        parameter = post.ref()
        if parameter is None or (post.backwards == 0 and self.stale is not None):
            return
        if post.backwards == 0:
            if self.sampling:
                self._look_at_rest(parameter.grad)
            return
        # A second pass without a step in between: accumulation, unless the first was thrown away.
        if parameter._version == post.version and _is_cleared(parameter.grad):
            self._on_thrown_away(post.scale)

    def _look_at_rest(self, gradient: Tensor | None) -> None:
        """Whether something is left of earlier steps, before the first backward of this one."""
        if gradient is None or gradient.is_cpu:
            self.stale = not _is_cleared(gradient)
        elif self.left_over is None:
            self.left_over = _sample(gradient)

    def _after(self, post: Post) -> None:
        """This parameter's gradient is complete, but for an average over ranks."""
        parameter = post.ref()
        if parameter is None or parameter.grad is None:
            return  # none is left where the user steps inside backward
        post.backwards += 1
        post.version = parameter._version
        post.scale = self._scale()
        self._on_backward()
        if not self.sampling:
            return
        if self.averaged_late:
            _after_backward(lambda: _after_backward(lambda: self._barrier.run(self._keep, post)))
        else:
            self._keep(post)

    def _keep(self, post: Post) -> None:
        parameter = post.ref()
        if parameter is not None and parameter.grad is not None:
            post.sample = _sample(parameter.grad)


def _choose(parameters: Sequence[Tensor]) -> list[Tensor]:
    able = [p for p in parameters if _can_stand(p)]
    if len(able) <= POSTS:
        return able
    largest = sorted(able[1:-1], key=lambda p: -p.numel())[: POSTS - 2]
    kept = {id(p) for p in (able[0], able[-1], *largest)}
    return [p for p in able if id(p) in kept]


def _can_stand(parameter: Tensor) -> bool:
    return (
        parameter.requires_grad
        and parameter.is_leaf
        and parameter.dtype in KINDS
        and parameter.device.type != "meta"
        and parameter.numel() > 0
    )


def _sample(gradient: Tensor) -> Tensor | None:
    gradient = local(gradient).detach()
    if gradient.layout is not torch.strided or not gradient.numel():
        return None
    return gradient.take(fixed_coordinates(gradient.numel(), WIDTH, gradient.device))


def _is_cleared(gradient: Tensor | None) -> bool:
    """No gradient, or zeros at the fixed coordinates; an accelerator only shows the former."""
    if gradient is None:
        return True
    if not gradient.is_cpu:
        return False
    sample = _sample(gradient)
    return sample is not None and not as_array(sample).any()


def _after_backward(action: Callable[[], None]) -> None:
    """Run when the backward pass that is running has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(action)
