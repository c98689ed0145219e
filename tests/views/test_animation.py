"""Moving pictures: what is drawn, and what the files hold."""

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.making import make_run
from tests.views.samples import HOSTILE, Told, network, sick_diagnosis

from gradwatch.analysis.flow import ColorScheme
from gradwatch.errors import GradwatchError
from gradwatch.finding import Finding, Severity
from gradwatch.run import Run
from gradwatch.views.animation import AnimationOptions, animate
from gradwatch.views.animation.frames import Mark, flow_frames
from gradwatch.views.animation.picture import LEFT, Painter
from gradwatch.views.colours import BAD, Scheme, colour, ink_on, luminance, ramp
from gradwatch.views.model import build


def painter(run: Run, scheme: Scheme = Scheme.VIRIDIS) -> Painter:
    model = build(run, sick_diagnosis(run), stats=["grad_rms"])
    return Painter(model, flow_frames(model), scheme)


def test_a_node_has_the_colour_of_its_gradient() -> None:
    made = painter(network(6, 20, fading=True))
    moment = made.frames.frames[10]
    image = made.draw(moment)
    for index, box in enumerate(made.plan.boxes):
        expected = colour(Scheme.VIRIDIS, (moment.codes[index] - 2) / 251)
        assert image.getpixel((box.x + box.width // 2, box.y + 5)) == expected
    assert moment.codes == tuple(sorted(moment.codes))  # fading: each later layer is higher


def test_marks_hold_from_the_finding_on_and_nonfinite_by_the_byte() -> None:
    run = network(4, 30, broken_from=20)
    moments = painter(run).frames.frames
    assert moments[6].marks[0] == frozenset()
    assert moments[7].marks[0] == {Mark.VANISHING}
    assert moments[19].marks[2] == frozenset()
    assert moments[20].marks[2] == {Mark.NONFINITE}


def test_what_follows_is_marked_and_what_is_only_mentioned_is_not() -> None:
    run = network(4, 30)
    names = run.layers[:3]

    def said(check: str, severity: Severity, layer: str, *follows: Finding) -> Finding:
        return Finding(check, severity, (layer,), 5, 9, "so", consequences=follows)

    dead = said("no-gradient", Severity.CRITICAL, names[1])
    root = said("exploding-gradient", Severity.WARNING, names[0], dead)
    hint = said("vanishing-gradient", Severity.INFO, names[2])
    model = build(run, Told((root, hint)), stats=["grad_rms"])
    moment = flow_frames(model).frames[6]
    assert moment.marks[:3] == (frozenset({Mark.EXPLODING}), frozenset({Mark.DEAD}), frozenset())
    assert flow_frames(model).frames[12].marks[1] == frozenset()


def test_a_nonfinite_layer_is_painted_in_a_colour_of_its_own() -> None:
    for scheme in Scheme:
        made = painter(network(4, 30, broken_from=20), scheme)
        box = made.plan.boxes[2]
        image = made.draw(made.frames.frames[25])
        assert image.getpixel((box.x + box.width // 2, box.y + 5)) == BAD[scheme]


def test_the_schemes_really_differ_and_grow_lighter() -> None:
    for scheme in Scheme:
        light = np.array(ramp(scheme)) @ (0.299, 0.587, 0.114)
        assert (np.diff(light) > -1.0).all()
        assert light[-1] - light[0] > 140
    ramps = [np.array(ramp(scheme), float) for scheme in Scheme]
    for i, one in enumerate(ramps):
        for other in ramps[i + 1 :]:
            assert np.abs(one - other).sum(axis=1).mean() > 40
    mono = np.array(ramp(Scheme.MONO))
    assert (mono[:, 0] == mono[:, 1]).all()


def test_words_can_be_read_on_every_colour_of_every_scheme() -> None:
    for scheme in Scheme:
        for ground in (*ramp(scheme), BAD[scheme]):
            light, dark = sorted((luminance(ground), luminance(ink_on(ground))), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (scheme, ground)


def test_the_legend_is_the_ramp_between_its_ends() -> None:
    for scheme in Scheme:
        made = painter(network(4, 10, fading=True), scheme)
        row = np.asarray(made.still)[58].tolist()
        begin = LEFT + 292
        assert row[begin] == list(ramp(scheme)[0])
        assert row[begin + 159] == list(ramp(scheme)[255])


def test_a_frame_of_many_steps_says_which_and_has_the_marks_of_all() -> None:
    run = network(4, 60, broken_from=50)
    model = build(run, sick_diagnosis(run), stats=["grad_rms"], columns=3)
    frames = flow_frames(model).frames
    assert [frame.when for frame in frames] == ["steps 0–19", "steps 20–39", "steps 40–59"]
    assert frames[0].marks[0] == {Mark.VANISHING}  # since step 7
    assert [Mark.NONFINITE in frame.marks[2] for frame in frames] == [False, False, True]


def test_what_follows_from_a_finding_is_marked_like_the_finding() -> None:
    run = network(4, 30)
    head, *_ = sick_diagnosis(run).findings
    after = replace(head, check="no-gradient", layers=("net.2",), severity=Severity.WARNING)
    noted = replace(head, check="exploding-gradient", layers=("net.3",), severity=Severity.INFO)
    told = Told((replace(head, consequences=(after, noted)),), healthy=False)
    last = flow_frames(build(run, told, stats=["grad_rms"])).frames[-1]
    assert last.marks == ({Mark.VANISHING}, frozenset(), {Mark.DEAD}, frozenset())


def test_the_smallest_gradient_does_not_look_like_none(tmp_path: Path) -> None:
    norms = np.tile([1e-6, 0.0, 1.0], (12, 1))
    run = make_run({"grad_norm": norms}, names=["faint.weight", "dead.weight", "well.weight"])
    animate(run, None, tmp_path / "a.txt", AnimationOptions())
    lines = (tmp_path / "a.txt").read_text().splitlines()[4:7]
    bars = [line.split("|")[1].strip() for line in lines]
    assert bars == ["█", "", "█" * 40]
    for scheme in Scheme:
        made = painter(run, scheme)
        image = made.draw(made.frames.frames[-1])
        faint, dead, _ = (image.getpixel((box.x + 56, box.y + 5)) for box in made.plan.boxes)
        assert np.abs(np.subtract(faint, dead)).sum() > 60, scheme


def test_colours_have_our_names_and_the_original_ones_in_any_case() -> None:
    assert [Scheme.named(scheme.upper()) for scheme in Scheme] == list(Scheme)
    assert {Scheme.named(name.lower()) for name in ColorScheme} == set(Scheme)
    assert Scheme.named("ColorBlind") is Scheme.CIVIDIS
    with pytest.raises(GradwatchError, match="no colour scheme named 'pink'"):
        Scheme.named("pink")


def test_wider_edges_carry_more() -> None:
    flows = painter(network(6, 20, fading=True)).frames.frames[5].flows
    chain = flows[1:-1]  # the first two leave the first layer
    assert list(chain) == sorted(chain)


def test_the_gif_has_every_moment_and_the_cursor_moves(tmp_path: Path) -> None:
    run = network(5, 24, fading=True)
    size = animate(run, sick_diagnosis(run), tmp_path / "a.gif", AnimationOptions(frames=24))
    assert size == (tmp_path / "a.gif").stat().st_size
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 24
        assert image.size[0] % 16 == image.size[1] % 16 == 0
        columns = []
        made = painter(run)
        left, top, right, _ = made.plan.loss
        for frame in (2, 12, 20):
            image.seek(frame)
            row = np.asarray(image.convert("RGB"))[top + 55, left + 1 : right - 1].sum(axis=1)
            columns.append(int(row.argmax()))
    assert columns == sorted(columns)
    assert columns[-1] - columns[0] > 300


def test_the_video_has_the_size_of_its_frames(tmp_path: Path) -> None:
    video = pytest.importorskip("imageio_ffmpeg")
    run = network(3, 8)
    animate(run, None, tmp_path / "a.mp4", AnimationOptions(frames=8))
    pixels = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    words = [video.get_ffmpeg_exe(), "-i", tmp_path / "a.mp4", *pixels]
    done = subprocess.run(words, capture_output=True, check=True)
    width, height = painter(run).plan.width, painter(run).plan.height
    assert f" {width}x{height}" in done.stderr.decode()
    assert len(done.stdout) == 8 * width * height * 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_the_text_tells_each_moment(tmp_path: Path) -> None:
    run = network(4, 6, broken_from=4)
    animate(run, sick_diagnosis(run), tmp_path / "a.txt", AnimationOptions())
    text = (tmp_path / "a.txt").read_text()
    assert text.count("=== step ") == 6
    last = text.split("=== step 5 ===")[1]
    assert "nan/inf   non-finite" in last
    assert [line.split("|")[0].strip() for line in last.strip().splitlines()] == list(run.layers)


def test_the_page_plays_by_itself(tmp_path: Path) -> None:
    run = network(4, 6)
    animate(run, None, tmp_path / "a.html", AnimationOptions(scheme=Scheme.MONO))
    text = (tmp_path / "a.html").read_text()
    assert 'data-mode="player" data-scheme="mono"' in text
    assert "http" not in text.split("<script>")[0].replace("http-equiv", "")


def test_hostile_names_and_single_steps_are_drawn(tmp_path: Path) -> None:
    for run in (network(names=HOSTILE, steps=3), network(2, 1), network(1, 2)):
        animate(run, sick_diagnosis(run), tmp_path / "a.gif", AnimationOptions(), force=True)
        animate(run, None, tmp_path / "a.txt", AnimationOptions(), force=True)
    (tmp_path / "a.txt").read_text()


def test_nothing_is_overwritten_silently_and_endings_are_checked(tmp_path: Path) -> None:
    run = network(2, 3)
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(GradwatchError, match="--force"):
        animate(run, None, tmp_path / "a.txt", AnimationOptions())
    assert (tmp_path / "a.txt").read_text() == "mine"
    with pytest.raises(GradwatchError, match=r"\.gif, \.mp4, \.html, \.txt"):
        animate(run, None, tmp_path / "a.avi", AnimationOptions())
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    with pytest.raises(GradwatchError, match="plain file"):
        animate(run, None, tmp_path / "link.txt", AnimationOptions(), force=True)
    empty = make_run({"weight_norm": np.ones((3, 1))}, names=["a.weight"])
    with pytest.raises(GradwatchError, match="no gradients"):
        animate(empty, None, tmp_path / "b.txt", AnimationOptions())


def test_names_end_inside_their_boxes() -> None:
    made = painter(network(names=["W" * 300, "i" * 300, "層" * 40], steps=2))
    image = np.asarray(made.draw(made.frames.frames[1])).astype(int)
    for box in made.plan.boxes:
        beside = image[box.y + 4 : box.y + 16, box.x + box.width + 2 : box.x + box.width + 20]
        assert (beside == beside[0, 0]).all()  # the ground, or an edge below the name's line


@pytest.mark.timing
def test_a_gif_of_24_layers_and_300_frames_takes_less_than_20_seconds(tmp_path: Path) -> None:
    import time

    begun = time.monotonic()
    animate(network(24, 300, fading=True), None, tmp_path / "a.gif", AnimationOptions())
    assert time.monotonic() - begun < 20
