"""From a run to a moving picture in a file; the ending of the name says which kind."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import write_whole
from gradwatch.run import Run
from gradwatch.views.animation.moments import Film, film
from gradwatch.views.animation.schemes import Scheme
from gradwatch.views.animation.strip import strip
from gradwatch.views.model import build
from gradwatch.views.model.health import Diagnosed
from gradwatch.views.model.titles import GRAD_RMS
from gradwatch.views.page import player

Progress = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the picture shall move."""

    frames: int = 300
    fps: float = 15.0
    scheme: Scheme = Scheme.VIRIDIS


def animate(
    run: Run,
    diagnosis: Diagnosed | None,
    path: Path,
    wanted: Wanted,
    *,
    force: bool = False,
    progress: Progress = iter,
) -> int:
    """Write the animation and return the file's size."""
    write = FORMATS.get(path.suffix.lower())
    if write is None:
        raise GradwatchError(
            f"Expected a file ending in {', '.join(FORMATS)}, got {path.name!r}.", Exit.USAGE
        )
    stats = None if path.suffix.lower() == ".html" else [GRAD_RMS]
    model = build(run, diagnosis, columns=wanted.frames, stats=stats, with_paths=False)
    if GRAD_RMS not in model["heat"]["maps"] or not model["flow"]["nodes"]:
        raise GradwatchError("This run has no gradients, so there is nothing that could flow.")
    made = film(model)
    return write_whole(path, lambda file: write(file, model, made, wanted, progress), force=force)


def _gif(
    file: BinaryIO, model: dict[str, Any], made: Film, wanted: Wanted, progress: Progress
) -> None:
    _need_pillow()
    from gradwatch.views.animation.palette import indexed
    from gradwatch.views.animation.picture import Painter

    painter = Painter(model, made, wanted.scheme)
    frames = (indexed(painter.frame(m), wanted.scheme) for m in progress(made.moments))
    first = next(frames)
    hold = [max(20, round(100 / wanted.fps) * 10)] * len(made.moments)
    hold[-1] = 1500  # the end can be read before it begins again
    first.save(file, "GIF", save_all=True, append_images=frames, duration=hold, loop=0, disposal=1)


def _mp4(
    file: BinaryIO, model: dict[str, Any], made: Film, wanted: Wanted, progress: Progress
) -> None:
    _need_pillow()
    try:
        video: Any = import_module("imageio_ffmpeg")
    except ImportError:
        raise GradwatchError(
            "MP4 needs imageio-ffmpeg: pip install 'gradwatch[video]'. A .gif needs only Pillow.",
            Exit.USAGE,
        ) from None
    from gradwatch.views.animation.picture import Painter

    painter = Painter(model, made, wanted.scheme)
    size = (painter.plan.width, painter.plan.height)
    beside = Path(file.name + ".mp4")
    try:
        out = video.write_frames(str(beside), size, fps=wanted.fps, quality=8, macro_block_size=16)
        out.send(None)
        for moment in progress(made.moments):
            out.send(painter.frame(moment).tobytes())
        out.close()
        file.write(beside.read_bytes())
    finally:
        beside.unlink(missing_ok=True)


def _html(
    file: BinaryIO, model: dict[str, Any], made: Film, wanted: Wanted, progress: Progress
) -> None:
    file.write(player(model, wanted.scheme).encode())


def _txt(
    file: BinaryIO, model: dict[str, Any], made: Film, wanted: Wanted, progress: Progress
) -> None:
    for line in strip(model, made):
        file.write(line.encode())


def _need_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise GradwatchError(
            "Pictures need Pillow: pip install 'gradwatch[pictures]'. .html and .txt do not.",
            Exit.USAGE,
        ) from None


Write = Callable[[BinaryIO, dict[str, Any], Film, Wanted, Progress], None]
FORMATS: dict[str, Write] = {".gif": _gif, ".mp4": _mp4, ".html": _html, ".txt": _txt}
