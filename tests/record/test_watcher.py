"""`watch` from its arguments to the run that opens: names, logs, resume, choice, ends."""

import gc
import logging
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.record.loops import loss_of, mlp
from tests.record.sinks import MemorySink, watch_into
from torch import nn

from gradwatch.errors import GradwatchError
from gradwatch.live import watch
from gradwatch.record import Disabled, Watcher
from gradwatch.record.guard import Overhead
from gradwatch.run import EventKind
from gradwatch.stats import Family, Stat
from gradwatch.store import open_run


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def train(model: nn.Module, optimizer: Any, steps: int, watcher: Any = None) -> list[float]:
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if watcher is not None:
            watcher.log(loss=loss)
    return losses


def test_one_line_in_a_plain_loop_makes_a_run_that_opens(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    watcher = watch(model, optimizer, run=tmp_path / "first")
    norms, losses = [], []
    for step in range(30):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        norms.append([float(p.grad.double().norm()) for p in model.parameters()])
        optimizer.step()
        watcher.log(loss=loss)
        losses.append(loss.item())
    watcher.close()
    run = open_run(watcher.run_dir)
    assert run.names == tuple(name for name, _ in model.named_parameters())
    assert list(run.steps) == [*range(31)]  # the weights at the end are those before step 30
    assert run.series[Stat.GRAD_NORM][:30] == pytest.approx(np.array(norms), rel=1e-6)
    assert run.scalars["loss"][:30] == pytest.approx(losses, rel=1e-6)
    assert np.isfinite(run.series[Stat.WEIGHT_NORM][[0, 9, 16, 30]]).all()
    assert np.isnan(run.series[Stat.WEIGHT_NORM][[11, 29]]).all()
    assert run.info["complete"] is True
    assert run.info["loss_kind"] == "cross_entropy"
    assert run.info["optimizer"] == "AdamW"
    assert [s.layer for s in run.parameters] == ["0", "0", "2", "2", "4", "4"]
    assert [s.order for s in run.parameters] == [0, 0, 2, 2, 4, 4]


def test_a_run_without_a_name_has_the_time_and_the_model_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = []
    for _ in range(3):
        with watch(mlp()) as watcher:
            paths.append(watcher.run_dir)
    assert len(set(paths)) == 3
    assert all(path.parent == Path("runs") and "Sequential" in path.name for path in paths)
    with watch(mlp(), run="named") as watcher:
        assert watcher.run_dir == Path("runs/named")


@pytest.mark.parametrize("early", [True, False])
def test_a_log_finds_its_step(early: bool) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        if early:
            watcher.log(loss=10.0 + step)
        optimizer.step()
        if not early:
            watcher.log(loss=10.0 + step)
        watcher.log({"val/top1": torch.tensor(20.0 + step)}, eval_loss=np.float32(30.0 + step))
    for step in range(5):
        found = sink.logged[step]
        assert found["loss"] == 10.0 + step
        assert found["val/top1"] == 20.0 + step
        assert found["val_loss"] == 30.0 + step


def test_a_loss_logged_before_its_backward_finds_its_step() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    watcher.log(val_loss=99.0)  # an evaluation before the training
    for step in range(5):
        loss = loss_of(model, step)
        watcher.log(loss=10.0 + step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(val_loss=20.0 + step, accuracy=30.0 + step)
    assert watcher.flush()  # the last ones wait for the end of the next step
    for step in range(5):
        found = sink.logged[step]
        assert found["loss"] == 10.0 + step
        assert found["val_loss"] == 20.0 + step
        assert found["accuracy"] == 30.0 + step


def test_logs_keep_their_place_without_sampling_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer, every=None)
    pace = watcher.controller.pace
    monkeypatch.setattr(pace, "choose", lambda spent, wall: pace.k)
    for step in range(100):
        if step == 20:
            pace.k = 16
        optimizer.zero_grad()
        loss_of(model, step).backward()
        watcher.log(loss=float(step))
        optimizer.step()
    assert watcher.controller.clock.idle_left
    assert watcher.flush()
    assert [sink.logged[step]["loss"] for step in range(100)] == [float(s) for s in range(100)]
    assert [s for s in sink.steps(Family.GRAD) if s > 20] == [32, 48, 64, 80, 96]
    assert all(sink.logged[s]["clip_factor"] == 1.0 for s in (32, 48, 64))


def test_a_log_takes_anything_and_reads_no_scalar_that_is_on_a_device() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            Reads.count += "_local_scalar_dense" in str(func) and not args[0].is_cpu
            return func(*args, **(kwargs or {}))

    with Reads(), pytest.raises(RuntimeError):
        torch.ones((), device="meta").item()
    assert Reads.count == 1  # what the rest of the test must not see

    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(0.01))
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    bare = mlp()
    bare_optimizer = torch.optim.AdamW(bare.parameters(), torch.tensor(0.01))
    counts = []
    for one, other in ((bare, bare_optimizer), (model, optimizer)):
        with Reads() as reads:
            Reads.count = 0
            loss = loss_of(one, 0)
            loss.backward()
            other.step()
            if one is model:
                watcher.log(loss=loss, many=torch.ones(3), word="no", nothing=None)
                watcher.log(far=torch.ones((), device="meta"))
                watcher.log(half=torch.tensor(1.5, dtype=torch.bfloat16), grad=loss * 2)
            counts.append(reads.count)
    assert counts[1] == counts[0]
    found = sink.logged[0]
    assert found["half"] == 1.5
    assert not {"many", "word", "nothing"} & found.keys()
    assert watcher.recording


def test_a_loss_that_is_not_finite_is_marked() -> None:
    sink = MemorySink()
    model = mlp()
    watcher = watch_into(sink, model)
    watcher.log(loss=torch.tensor(float("nan")))
    assert sink.logged[0]["loss_nonfinite"] == 1.0


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, run=tmp_path / "r") as watcher:
        train(model, optimizer, 4, watcher)
    with watch(model, optimizer, run=tmp_path / "r", step=4) as watcher:
        train(model, optimizer, 3, watcher)
    run = open_run(tmp_path / "r")
    assert list(run.steps) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert np.isfinite(run.scalars["loss"][:7]).all()
    assert np.isfinite(run.series[Stat.GRAD_NORM][:7]).all()
    assert np.isfinite(run.series[Stat.WEIGHT_NORM][4]).all()


def test_only_what_was_chosen_is_recorded() -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    families = {
        "gradients": {Family.GRAD, Family.GROUP},
        "weights": {Family.WEIGHT},
        "updates": {Family.UPDATE, Family.OPTIM},
    }
    for part, expected in families.items():
        sink = MemorySink()
        with watch_into(sink, model, optimizer, record={part}):
            train(model, optimizer, 3)
        assert {family for family, _, _ in sink.rows} == expected
        assert not sink.bins
    sink = MemorySink()
    with watch_into(sink, model, optimizer, record={"gradients", "histograms"}):
        train(model, optimizer, 3)
    assert {family for family, _, _ in sink.bins} == {Family.GRAD}


def test_names_choose_parameters_and_layers() -> None:
    model = mlp()
    names = [name for name, _ in model.named_parameters()]

    def watched(**options: Any) -> list[str]:
        sink = MemorySink()
        with watch_into(sink, model, **options) as watcher:
            (tracked,) = (t for t in watcher.controller.parameters.all if t.parameters)
            return [info.name for info in tracked.parameters]

    assert watched() == names
    assert watched(include="2") == ["2.weight", "2.bias"]
    assert watched(include=["0", "*.bias"]) == ["0.weight", "0.bias", "2.bias", "4.bias"]
    assert watched(exclude="*.bias") == ["0.weight", "2.weight", "4.weight"]
    assert watched(include="?.weight", exclude="4") == ["0.weight", "2.weight"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"every": 0}, "`every`"),
        ({"every": 2.5}, "`every`"),
        ({"budget": 0}, "`budget`"),
        ({"budget": 7}, "`budget`"),
        ({"record": {"everything"}}, "`record`"),
        ({"record": ()}, "`record`"),
        ({"record": {"histograms"}}, "`record`"),
        ({"step": -1}, "`step`"),
        ({"step": "3"}, "`step`"),
        ({"include": "decoder"}, "leave no parameter"),
        ({"exclude": "*"}, "leave no parameter"),
        ({"include": 3}, "`include`"),
        ({"scaler": 1024.0}, "`scaler`"),
        ({"run": ""}, "`run`"),
        ({"keep": "lots"}, "`keep`"),
        ({"keep": 7.5}, "`keep`"),
    ],
)
def test_wrong_arguments_raise_at_once(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(GradwatchError, match=said):
        watch(mlp(), **{"run": tmp_path / "r", **wrong})
    assert not (tmp_path / "r").exists()


def test_recording_at_a_url_is_refused_without_repeating_it() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(
        GradwatchError, match=r"a path of this machine, got s3://…; .*export"
    ) as said:
        watch(model, optimizer, run="s3://key:secret@bucket/x")
    assert "secret" not in str(said.value)


def test_what_is_no_model_or_no_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GradwatchError, match=r"torch\.nn\.Module"):
        watch("model")  # type: ignore[arg-type]
    with pytest.raises(GradwatchError, match=r"watcher\.step\(\)"):
        watch(mlp(), object(), run=tmp_path / "r")
    with pytest.raises(GradwatchError, match="no parameters"):
        watch(nn.ReLU(), run=tmp_path / "r")


def test_a_second_watch_closes_the_first_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    first = watch(model, optimizer, run=tmp_path / "first")
    train(model, optimizer, 2)
    with caplog.at_level(logging.WARNING, "gradwatch"):
        second = watch(model, optimizer, run=tmp_path / "second")
    assert "watched again" in caplog.text
    assert not first.recording
    train(model, optimizer, 3)
    second.close()
    assert list(open_run(tmp_path / "first").steps) == [0, 1, 2]
    assert list(open_run(tmp_path / "second").steps) == [0, 1, 2, 3]
    last = [e for e in open_run(tmp_path / "first").events if e.kind is EventKind.CLOSED]
    assert "watched again" in last[-1].text


@pytest.mark.parametrize("word", ["off", "0", "False", "DISABLED"])
def test_off_does_nothing_at_all(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWATCH_MODE", word)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, run=tmp_path / "r") as watcher:
        train(model, optimizer, 2, watcher)
        watcher.step()
        assert watcher.flush()
    assert isinstance(watcher, Disabled)
    assert not (tmp_path / "r").exists()
    assert not any(p._backward_hooks for p in model.parameters())
    public = {name for name in dir(Watcher) if not name.startswith("_")} | {"run_dir"}
    assert public <= {name for name in dir(Disabled) if not name.startswith("_")}


def test_nothing_of_ours_is_left_after_close(tmp_path: Path) -> None:
    from torch.optim import optimizer as module

    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    keys = list(model.state_dict())
    count = len(module._global_optimizer_pre_hooks)
    watcher = watch(model, optimizer, run=tmp_path / "r")
    train(model, optimizer, 3)
    assert list(model.state_dict()) == keys
    watcher.close()
    watcher.close()
    assert len(module._global_optimizer_pre_hooks) == count
    assert len(module._global_optimizer_post_hooks) == count
    assert not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any(watcher.guard is thing for thing in (model.__dict__, optimizer.__dict__))
    train(model, optimizer, 1, watcher)
    assert list(open_run(tmp_path / "r").steps) == [0, 1, 2, 3]


def test_a_dead_model_is_not_kept_alive(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    watcher = watch(model, optimizer, run=tmp_path / "r")
    train(model, optimizer, 3)
    gone = weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[0].weight)
    del model, optimizer
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
    assert not watcher.recording


def test_a_watched_model_is_copied_and_pickled_without_us(tmp_path: Path) -> None:
    import copy

    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    sink = MemorySink()
    watch_into(sink, model, optimizer)
    train(model, optimizer, 2)
    data = pickle.dumps(model)
    assert b"gradwatch" not in data
    torch.save(model, tmp_path / "model.pt")
    twin = copy.deepcopy(model)
    before = len(sink.rows)
    other = torch.optim.AdamW(twin.parameters(), 0.01)
    train(twin, other, 2)
    assert len(sink.rows) == before
    assert EventKind.OPTIMIZER_ADOPTED not in sink.kinds()


def test_a_loop_that_ends_in_an_error_is_closed_and_the_error_passes(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def fail() -> None:
        with watch(model, optimizer, run=tmp_path / "r"):
            train(model, optimizer, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    events = open_run(tmp_path / "r").events
    assert events[-1].text == "closed by ZeroDivisionError"


def test_a_step_that_fails_half_way_is_not_recorded_as_made() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    train(model, optimizer, 2)

    def closure() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(closure)
    train(model, optimizer, 2)
    assert watcher.recording
    assert sink.steps(Family.UPDATE) == [0, 1, 3, 4]


def test_events_tell_what_changed_within_sixteen_recorded_steps() -> None:
    model = mlp()
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watch_into(sink, model, optimizer)
    train(model, optimizer, 16)
    model[0].weight.requires_grad_(False)
    train(model, optimizer, 16)
    model[0].weight.requires_grad_(True)
    model.extra = nn.Linear(3, 3)
    train(model, optimizer, 16)
    del model.extra
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    train(model, optimizer, 16)
    told = [(event.kind, event.subject) for event in sink.events]
    assert (EventKind.FROZEN, "0.weight") in told
    assert (EventKind.UNFROZEN, "0.weight") in told
    assert (EventKind.PARAMETER_ADDED, "extra.weight") in told
    assert (EventKind.PARAMETER_REMOVED, "extra.weight") in told
    assert (EventKind.OPTIMIZER_ADOPTED, "") in told


def test_a_loop_whose_steps_are_never_seen_says_so() -> None:
    model = mlp()
    sink = MemorySink()
    with watch_into(sink, model):
        loss_of(model, 0).backward()
    told = [event.text for event in sink.events if event.kind is EventKind.NOT_RECORDED]
    assert len(told) == 1
    assert "watcher.step()" in told[0]


@pytest.mark.parametrize("logs", [True, False])
def test_a_loop_without_a_logged_loss_is_asked_for_one(logs: bool) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    with watch_into(sink, model, optimizer) as watcher:
        train(model, optimizer, 6, watcher if logs else None)
    asked = [event.step for event in sink.events if "log(loss=loss)" in event.text]
    assert asked == ([] if logs else [3])


def test_overhead_is_the_time_inside_us(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    inner = watcher.controller.recorder.take

    def slow(found: Any) -> None:
        time.sleep(0.02)
        inner(found)

    monkeypatch.setattr(watcher.controller.recorder, "take", slow)
    train(model, optimizer, 10)
    assert watcher.guard.timer.spent >= 0.2
    assert 0.0 < watcher.overhead <= 1.0


def test_background_is_the_writing_threads_share() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    train(model, optimizer, 3)
    before = watcher.guard.timer.wall
    share = watcher.background
    assert sink.background / watcher.guard.timer.wall <= share <= sink.background / before
    watcher.close()
    assert 0.0 < sink.info["background"] <= share


def test_a_writing_thread_is_at_work(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, run=tmp_path / "r", every=1) as watcher:
        train(model, optimizer, 50)
        watcher.flush()
        train(model, optimizer, 50)
        watcher.flush()
        assert 0.0 < watcher.background < 1.0
    assert 0.0 < open_run(tmp_path / "r").info["background"] < 1.0


def test_a_wrapper_that_is_an_optimizer_itself_is_unwrapped() -> None:
    from gradwatch.record.hooks import bare_optimizer

    inner = torch.optim.SGD(mlp().parameters(), 0.1)

    class Wrapper(torch.optim.Optimizer):
        """As accelerate's: an optimizer by type, without any of its hooks."""

        def __init__(self) -> None:
            self.optimizer = inner

    assert bare_optimizer(Wrapper()) is inner
    assert bare_optimizer(inner) is inner
    assert bare_optimizer(object()) is None


def test_an_unknown_mode_records_and_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GRADWATCH_MODE", "offf")
    model = mlp()
    with watch(model, torch.optim.SGD(model.parameters(), 0.1), run=tmp_path / "r") as watcher:
        assert watcher.recording
    (message,) = [record.getMessage() for record in caplog.records]
    assert "'offf'" in message
    assert "quiet, off, 0, false, disabled" in message


# -- several networks ------------------------------------------------------------------------------


def pair() -> tuple[nn.Module, nn.Module, Any, Any]:
    generator, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    adam = torch.optim.Adam
    return generator, critic, adam(generator.parameters()), adam(critic.parameters())


def train_pair(generator: Any, critic: Any, of_generator: Any, of_critic: Any) -> Any:
    """One step of each; the losses."""
    of_critic.zero_grad()
    critic_loss = critic(generator(torch.ones(3, 4)).detach()).mean()
    critic_loss.backward()
    of_critic.step()
    of_generator.zero_grad()
    loss = -critic(generator(torch.ones(3, 4))).mean()
    loss.backward()
    of_generator.step()
    return {"G": {"loss": loss}, "D": {"loss": critic_loss}}


@pytest.mark.parametrize("named", [False, True])
def test_several_networks_are_named_by_place_or_key(named: bool, tmp_path: Path) -> None:
    networks = pair()
    generator, critic, *optimizers = networks
    both: Any = {"G": generator, "D": critic} if named else [generator, critic]
    given = [optimizers] if named else optimizers
    with watch(both, *given, run=tmp_path / "gan") as watcher:
        for _ in range(12):
            watcher.log(train_pair(*networks))
    run = open_run(tmp_path / "gan")
    first, second = ("G", "D") if named else ("0", "1")
    assert run.names[:2] == (f"{first}.weight", f"{first}.bias")
    assert run.names[2:] == tuple(f"{second}.{name}" for name, _ in critic.named_parameters())
    assert run.step_count == 12
    assert np.isfinite(run.scalars["G.loss"][:12]).all()
    assert np.isfinite(run.scalars["D.loss"][:12]).all()
    assert np.isfinite(run.series[Stat.GRAD_NORM][:12]).all()
    assert np.isfinite(run.scalars["input_rms"][1:12]).all()
    assert run.info["model"] == ("G+D" if named else "Linear+Sequential")


def test_watching_several_networks_keeps_none_alive(tmp_path: Path) -> None:
    networks = pair()
    watcher = watch(list(networks[:2]), *networks[2:], run=tmp_path / "gan")
    train_pair(*networks)
    remembered = [weakref.ref(network) for network in networks[:2]]
    del networks
    gc.collect()
    assert [reference() for reference in remembered] == [None, None]
    assert not watcher.recording
    watcher.close()  # waits for the files
    assert open_run(tmp_path / "gan").step_count == 1


def test_watching_one_of_several_again_closes_them(tmp_path: Path) -> None:
    generator, critic, of_generator, of_critic = pair()
    first = watch([generator, critic], of_generator, of_critic, run=tmp_path / "both")
    watch(critic, of_critic, run=tmp_path / "one").close()
    assert not first.recording


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (lambda g, d, og, od: (og, g), "watch(model, optimizer)"),
        (lambda g, d, og, od: (nn.Linear, og), "watch(model, optimizer)"),
        (lambda g, d, og, od: (g.parameters(),), "watch(model, optimizer)"),
        (lambda g, d, og, od: (g, d, og, od), "watch([G, D], opt_g, opt_d)"),
        (lambda g, d, og, od: ([g, og],), "watch([G, D], opt_g, opt_d)"),
        (lambda g, d, og, od: ([], og), "watch([G, D], opt_g, opt_d)"),
        (lambda g, d, og, od: ({"a.b": g}, og), 'watch({"G": G, "D": D}, opt_g, opt_d)'),
        (lambda g, d, og, od: (g, torch.amp.GradScaler("cpu")), "scaler=scaler"),
        (lambda g, d, og, od: (g, print), "watcher.step()"),
    ],
)
def test_wrong_arguments_get_the_line_to_type(arguments: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(GradwatchError) as caught:
        watch(*arguments(*pair()), run=tmp_path / "r")
    assert line in str(caught.value)
    assert not (tmp_path / "r").exists()


# -- logging ---------------------------------------------------------------------------------------


def test_log_takes_what_people_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer, run=tmp_path / "r") as watcher:
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            watcher.log(loss)
            watcher.log({"G": {"loss": loss, "deep": {"er": step}}, 7: 0.5}, plain=np.array(2.0))
            watcher.log(nested={"a": np.float32(3.0)}, one=torch.ones(1, 1))
            watcher.log(text="3.5", many=torch.ones(2), nothing=None, things=[1.0])
            watcher.log(loss=float("nan") if step == 3 else loss)
    run = open_run(tmp_path / "r")
    logged = {name: run.scalars[name][3] for name in ("G.deep.er", "7", "plain", "nested.a", "one")}
    assert logged == {"G.deep.er": 3.0, "7": 0.5, "plain": 2.0, "nested.a": 3.0, "one": 1.0}
    assert np.isfinite(run.scalars["loss"][:3]).all()
    assert not {"text", "many", "nothing", "things"} & run.scalars.keys()
    assert run.scalars["loss_nonfinite"][:4] == pytest.approx([np.nan] * 3 + [1.0], nan_ok=True)
    refused = [e.text for e in run.events if e.kind is EventKind.NOT_RECORDED]
    assert [text.partition("=")[0] for text in refused] == [
        "log(text", "log(many", "log(nothing", "log(things"
    ]  # fmt: skip
    warned = [record.getMessage() for record in caplog.records]
    assert warned == [f"gradwatch: {text}" for text in refused]


def test_a_bare_number_costs_no_more_than_a_named_one(tmp_path: Path) -> None:
    """From the second time on both are kept without the long way."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer, run=tmp_path / "r") as watcher:
        train(model, optimizer, 2, watcher)
        watcher.log(0.5)
        watcher.controller.log = None  # type: ignore[method-assign, assignment]
        watcher.log(0.25)
        watcher.log({"loss": 0.125})
        assert watcher.recording


def test_the_cost_is_told_in_two_parts(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer, run=tmp_path / "r") as watcher:
        train(model, optimizer, 3, watcher)
    assert 0 < watcher.overhead < 1
    assert 0 < watcher.overhead.free < 2.0
    assert watcher.overhead.after == 0.0
    assert str(watcher.overhead).endswith("s of the free ones")
    spent = Overhead(2.5, 100.0, allowance=2.0, charged=50.0)
    assert (float(spent), spent.free, spent.after) == (0.025, 2.0, 0.01)
    assert str(spent) == "2 s of the free ones, then 1 % of the time"
    assert open_run(tmp_path / "r").info["overhead_after_allowance"] == 0.0
