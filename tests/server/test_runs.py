"""Long runs from their stored levels: spikes at every zoom, early answers, changes."""

import json
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.server.visiting import Visit
from tests.store.trial import WAIT, finishing_at
from tests.views.samples import network
from tests.views.stored import Stored, stored

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.errors import GradwatchError
from gradwatch.run import Run, Subject
from gradwatch.server import runs as served_runs
from gradwatch.server.encoded import ViewRequest
from gradwatch.server.runs import Library
from gradwatch.stats import Family, Kind, Stat, row_dtype
from gradwatch.store import Retention, Writer, open_run
from gradwatch.store.layout import BUCKET
from gradwatch.views.model import SECTIONS, build, to_json
from gradwatch.views.model.heat import codes_of, decoded

STEPS, TENSORS = 40_000, 8


class Spike(NamedTuple):
    """One step on which one tensor's gradient is far larger than ever else."""

    step: int
    tensor: int
    value: float


SPIKES = (Spike(12_345, 6, 1e6), Spike(21_004, 0, 1e6), Spike(37_531, 3, 1e6))
"""Two among rows that only coarse rows stand for, one among whole rows."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of gradients and updates that retention went over."""
    root = tmp_path_factory.mktemp("long")
    with finishing_at(1 << 20):
        writer = Writer.create(root / "long", name="long", keep=Retention(bytes=3_300_000))
        names = [
            f"h.{number // 2}.{'weight' if number % 2 == 0 else 'bias'}"
            for number in range(TENSORS)
        ]
        ids = writer.declare(
            [
                Subject(
                    Kind.PARAMETER, name, name.rpartition(".")[0], (256, 256), "float32", 65536, 0
                )
                for name in names
            ]
        )
        chance = np.random.default_rng(0)
        drawn = {
            family: np.zeros((256, TENSORS), row_dtype(family))
            for family in (Family.GRAD, Family.UPDATE)
        }
        for table in drawn.values():
            for column in table.dtype.names or ():
                if column.endswith("_count"):
                    table[column] = 65536
                elif table[column].dtype.kind == "f":
                    table[column] = chance.lognormal(-4, 0.2, table[column].shape)
        states = np.zeros(TENSORS, np.uint8)
        for step in range(STEPS):
            rows = drawn[Family.GRAD][step % 256].copy()
            for spike in SPIKES:
                if spike.step == step:
                    rows["grad_norm"][spike.tensor] = spike.value
            writer.put(Family.GRAD, step, ids, rows, states)
            if step % 4 == 0:
                writer.put(Family.UPDATE, step, ids, drawn[Family.UPDATE][step % 256], states)
            writer.scalars(step, {"loss": 1 / (1 + step)})
            if step % 200 == 0:
                assert writer.flush(WAIT)
        assert writer.close(WAIT)
    return root


@pytest.fixture
def visit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Visit:
    """The run counts as a big and a large one, as one of a million steps does."""
    monkeypatch.setattr(served_runs, "BIG", 1 << 18)
    monkeypatch.setattr(served_runs, "MOST_DIAGNOSED", 100_000)
    section = import_module("gradwatch.views.model.heat")  # its function has the same name
    monkeypatch.setattr(section, "STATES_UP_TO", 100_000)
    return Visit(folder)


def view(visit: Visit, **params: Any) -> dict[str, Any]:
    answer = visit.get(f"/api/runs/{visit.id_of('long')}/view", params=params)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def seen(model: dict[str, Any], spike: Spike) -> list[tuple[int, int]]:
    """First and last step of the columns in which the spike's row is far above all else."""
    heat = model["heat"]
    row = decoded(*codes_of(heat, "grad_rms"))[spike.tensor]
    high = 0.9 * spike.value / np.sqrt(65536.0)
    columns = np.array(heat["maps"]["grad_rms"]["columns"])[np.nan_to_num(row) > high]
    return [(heat["first"][at], heat["last"][at]) for at in columns.tolist()]


def test_retention_left_what_the_test_says(folder: Path) -> None:
    (writer,) = open_run(folder / "long").source.folders  # type: ignore[attr-defined]
    assert SPIKES[1].step + BUCKET < writer.parts["rows/grad"][0].first_step < SPIKES[2].step
    assert writer.parts["coarse/grad"][0].first_step == 0


@pytest.mark.parametrize("spike", SPIKES, ids=["coarse", "coarse too", "rows"])
def test_a_spike_is_found_at_every_zoom(visit: Visit, spike: Spike) -> None:
    removed = spike is not SPIKES[2]
    narrow = () if removed else (100, 30, 10, 3, 1)  # less than what a coarse row stands for
    for width in (40_000, 30_000, 10_000, 3_000, 1_000, 300, *narrow):
        first = max(0, min(spike.step - width // 3, STEPS - width))
        model = view(visit, first=first, last=first + width - 1, maps="grad_rms", sections="heat")
        found = seen(model, spike)
        assert len(found) == 1, width
        ((low, high),) = found
        near = BUCKET if removed else 0
        assert low - near <= spike.step <= high + near, width
        assert high - low < max(1, width // 100), width


def test_beside_a_spike_there_is_none(visit: Visit) -> None:
    step = SPIKES[0].step
    after, before = step + BUCKET, step - BUCKET
    for first, last in ((after, after + 5_000), (before - 5_000, before), (22_000, 36_000)):
        model = view(visit, first=first, last=last, maps="grad_rms", sections="heat")
        assert seen(model, SPIKES[0]) == []


def test_an_opened_large_run_says_that_it_is_not_diagnosed(visit: Visit) -> None:
    model = view(visit, soon=1)
    assert model["coming"]["what"] == "not diagnosed: too large"
    assert set(model["coming"]["maps"]) >= {"grad_rms", "update_ratio"}
    assert model["health"]["state"] == "unknown"
    assert {curve["name"] for curve in model["scalars"]} >= {"loss"}
    assert model["run"]["steps"] == STEPS


def test_a_series_that_is_too_large_is_not_served(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_runs, "MOST_LOADED", 100_000)
    view(visit, soon=1)
    (run,) = visit.library.scan().values()
    assert run.run is not None
    with pytest.raises(GradwatchError, match="too many to be served"):
        run.run.source.load(Stat.GRAD_NORM)


def test_a_map_of_a_run_that_is_too_large_is_drawn_from_coarse_rows(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_runs, "MOST_LOADED", 100_000)
    narrow = view(visit, maps="grad_rms", sections="heat")
    assert "grad_rms" not in narrow["heat"]["maps"]
    sizes = import_module("gradwatch.run.downsample")
    monkeypatch.setattr(sizes, "MOST_CELLS", 10_000)
    monkeypatch.setattr(sizes, "WIDE", 16)  # `keep` has left few rows
    model = view(visit, first=0, last=STEPS, maps="grad_rms", sections="heat")
    for spike in SPIKES:
        ((low, high),) = seen(model, spike)
        assert low - BUCKET <= spike.step <= high + BUCKET


def test_a_plain_question_waits_for_the_whole_model(visit: Visit, folder: Path) -> None:
    text = visit.get(f"/api/runs/{visit.id_of('long')}/view").content
    assert text.decode() == to_json(build(open_run(folder / "long"), None))


def test_a_first_look_of_a_small_run_lacks_only_the_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(network(5, 40, fading=True), tmp_path / "one", "one")
    visit = Visit(tmp_path)
    key = visit.library.scan().copy().popitem()[0]
    with monkeypatch.context() as patch:
        patch.setattr("gradwatch.server.runs.WorkerThreads.ask", lambda *_: None)
        model = visit.get(f"/api/runs/{key}/view", params={"soon": 1}).json()
    assert model["coming"]["what"] == "diagnosing"
    assert model["findings"] == []
    run = open_run(path)
    final = to_json(build(run, diagnose(run)))
    assert visit.get(f"/api/runs/{key}/view").text == final
    assert visit.get(f"/api/runs/{key}/view", params={"soon": 1}).text == final


def test_sections_are_those_of_the_view_model(tmp_path: Path) -> None:
    path = stored(network(3, 20), tmp_path / "one", "one")
    visit = Visit(tmp_path)
    whole = build(open_run(path), None)
    assert tuple(json.loads(to_json(whole))) == SECTIONS
    address = f"/api/runs/{visit.id_of('one')}/view"
    some = visit.get(address, params={"sections": "window,run"}).json()
    assert some == {"run": whole.run, "window": whole.window}
    for bad in (
        {"sections": "nothing"},
        {"maps": "nothing"},
        {"maps": ",".join("abcdefghijklmnopqrs")},
    ):
        answer = visit.get(address, params=bad)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("Expected ")


def test_only_what_changed_is_sent_and_joins_to_the_same_bytes(tmp_path: Path) -> None:
    writing = Stored(network(4, 60), tmp_path / "one", "one")
    writing.upto(30)
    visit = Visit(tmp_path)
    address = f"/api/runs/{visit.id_of('one')}/view"
    before = visit.get(address)
    tag = {"if-none-match": before.headers["etag"]}
    same = visit.get(address, headers=tag)
    assert (same.status_code, same.content) == (304, b"")
    writing.finish()
    while (after := visit.get(address)).headers["etag"] == before.headers["etag"]:
        pass  # a rest between two builds may give the older one first
    news = visit.get(address, params={"changes": "1"}, headers=tag)
    assert news.headers["x-gradwatch-since"] == before.headers["etag"].strip('"')
    changed = news.json()
    assert {"run", "heat", "scalars"} <= set(changed)
    assert not {"format", "tensors", "signals"} & set(changed)
    assert len(news.content) < len(after.content)
    joined = {**before.json(), **changed}
    assert to_json(joined).encode() == after.content
    assert json.loads(after.content) == joined
    stranger = visit.get(address, params={"changes": "1"}, headers={"if-none-match": '"x"'})
    assert "x-gradwatch-since" not in stranger.headers
    assert stranger.content == after.content


def test_a_preview_does_not_wait_for_the_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = Stored(network(4, 60), tmp_path / "one", "one")
    writing.upto(30)
    begun, free = threading.Event(), threading.Event()

    def slow(run: Run) -> Diagnosis:
        begun.set()
        assert free.wait(60)
        return diagnose(run)

    monkeypatch.setattr(served_runs, "diagnosed", slow)
    monkeypatch.setattr(served_runs, "REST", 0.0)
    (run,) = Library([tmp_path]).scan().values()
    building = threading.Thread(target=run.whole, args=(None, None))
    building.start()
    assert begun.wait(60)
    writing.finish()  # it is not read on while somebody reads it
    model = json.loads(run.view(ViewRequest(soon=True)).text)
    assert model["coming"]["what"] == "diagnosing"
    assert model["run"]["steps"] == 30
    free.set()
    building.join(60)
    assert json.loads(run.whole(None, None).text)["run"]["steps"] == 60
    opened = open_run(tmp_path / "one")
    assert run.whole(None, None).text.decode() == to_json(build(opened, diagnose(opened)))


def test_many_threads_read_a_growing_run_through_one_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_runs, "REST", 0.0)
    writing = Stored(network(6, 80), tmp_path / "one", "one")
    writing.upto(10)
    (run,) = Library([tmp_path]).scan().values()
    problems: list[BaseException] = []
    ended = threading.Event()

    def ask(number: int) -> None:
        first = 0
        try:
            while not ended.is_set():
                first = (first + 7 + number) % 60
                run.view(ViewRequest(first, first + 9, ("grad_rms",), None, number % 2 == 0))
                run.view(ViewRequest(first, None))
                run.view(ViewRequest(soon=True))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for steps in range(11, 81):
        writing.upto(steps)
    writing.finish()
    ended.set()
    for thread in threads:
        thread.join(120)
    assert problems == []
    opened = open_run(tmp_path / "one")
    assert run.whole(None, None).text.decode() == to_json(build(opened, diagnose(opened)))


def test_analyses_are_made_once_for_each_state_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(run: Run) -> Any:
        made.append(len(run.steps))
        return analyze_gradients(run)

    section = import_module("gradwatch.views.model.analyses")  # its function has the same name
    monkeypatch.setattr(section, "analyze_gradients", counted)
    monkeypatch.setattr(served_runs, "REST", 0.0)
    writing = Stored(network(3, 60), tmp_path / "one", "one")
    writing.upto(20)
    visit = Visit(tmp_path)
    address = f"/api/runs/{visit.id_of('one')}/view"
    for sections in ("analyses", "analyses,health", "run"):
        assert visit.get(address, params={"sections": sections}).status_code == 200
    assert made == [20]
    assert visit.get(address, params={"first": 3, "sections": "analyses"}).json() == {
        "analyses": None
    }
    writing.upto(40)
    found = visit.get(address, params={"sections": "analyses"}).json()["analyses"]
    assert [target["kind"] for target in found["targets"]] == ["layer"] * 3
    assert made == [20, 40]
