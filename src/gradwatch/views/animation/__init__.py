"""Moving pictures of a run: the flow network over time, as GIF, MP4, a page that plays, or text.

The ending of the file's name says which kind. Unlike `gradwatch.analysis.animator`, which measures
gradients that are handed to it, this draws what the view model says about a recorded run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gradwatch.diagnosis import Diagnosis
from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import write_whole
from gradwatch.run import Run
from gradwatch.views.animation.frames import FlowFrames, as_text, flow_frames
from gradwatch.views.colours import Scheme
from gradwatch.views.model import ViewModel, build
from gradwatch.views.model.titles import GRAD_RMS
from gradwatch.views.page import player

if TYPE_CHECKING:  # Pillow is optional
    from PIL import Image

    from gradwatch.views.animation.picture import Painter

Tick = Callable[[float], None]
"""Told the share that is done, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class AnimationOptions:
    """How the picture shall move."""

    frames: int = 300
    fps: float = 15.0
    scheme: Scheme = Scheme.VIRIDIS


@dataclass(frozen=True)
class _Movie:
    """What every format is written from."""

    model: ViewModel
    shown: FlowFrames
    options: AnimationOptions
    tick: Tick


def animate(
    run: Run,
    diagnosis: Diagnosis | None,
    path: Path,
    options: AnimationOptions,
    *,
    force: bool = False,
    tick: Tick = lambda share: None,
) -> int:
    """Write the animation and return the file's size."""
    write = FORMATS.get(path.suffix.lower())
    if write is None:
        raise GradwatchError(
            f"Expected a file ending in {', '.join(FORMATS)}, got {path.name!r}.", Exit.USAGE
        )
    stats = None if path.suffix.lower() == ".html" else [GRAD_RMS]
    model = build(run, diagnosis, columns=options.frames, stats=stats, with_paths=False)
    if GRAD_RMS not in model.heat["maps"] or not model.flow["nodes"]:
        unread = GRAD_RMS in model.heat["left_out"]
        why = "'s gradients cannot be read" if unread else " has no gradients"
        raise GradwatchError(f"This run{why}, so there is nothing that could flow.")
    movie = _Movie(model, flow_frames(model), options, tick)
    return write_whole(path, lambda file: write(file, movie), force=force)


def _gif(file: BinaryIO, movie: _Movie) -> None:
    painter = _painter(movie)
    from gradwatch.views.animation.picture import indexed

    images = (indexed(image, movie.options.scheme) for image in _drawn(painter, movie))
    first = next(images)
    hold = [max(20, round(100 / movie.options.fps) * 10)] * len(movie.shown.frames)
    hold[-1] = 1500  # the end can be read before it begins again
    first.save(file, "GIF", save_all=True, append_images=images, duration=hold, loop=0, disposal=1)


def _mp4(file: BinaryIO, movie: _Movie) -> None:
    painter = _painter(movie)
    try:
        video: Any = import_module("imageio_ffmpeg")
    except ImportError:
        raise GradwatchError(
            "MP4 needs imageio-ffmpeg: pip install imageio-ffmpeg. A .gif needs only Pillow.",
            Exit.USAGE,
        ) from None
    size = (painter.plan.width, painter.plan.height)
    fps = movie.options.fps
    beside = Path(file.name + ".mp4")  # the encoder takes a name, not an open file
    try:
        out = video.write_frames(str(beside), size, fps=fps, quality=8, macro_block_size=16)
        out.send(None)
        for image in _drawn(painter, movie):
            out.send(image.tobytes())
        out.close()
        file.write(beside.read_bytes())
    finally:
        beside.unlink(missing_ok=True)


def _html(file: BinaryIO, movie: _Movie) -> None:
    file.write(player(movie.model, movie.options.scheme).encode())


def _txt(file: BinaryIO, movie: _Movie) -> None:
    for line in as_text(movie.model, movie.shown):
        file.write(line.encode())


def _painter(movie: _Movie) -> "Painter":
    try:
        from gradwatch.views.animation.picture import Painter
    except ImportError:
        raise GradwatchError(
            "Pictures need Pillow: pip install pillow. .html and .txt do not.",
            Exit.USAGE,
        ) from None
    return Painter(movie.model, movie.shown, movie.options.scheme)


def _drawn(painter: "Painter", movie: _Movie) -> "Iterator[Image.Image]":
    for number, frame in enumerate(movie.shown.frames, start=1):
        yield painter.draw(frame)
        movie.tick(number / len(movie.shown.frames))


FORMATS: dict[str, Callable[[BinaryIO, _Movie], None]] = {
    ".gif": _gif,
    ".mp4": _mp4,
    ".html": _html,
    ".txt": _txt,
}
