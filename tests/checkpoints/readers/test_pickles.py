"""Pickled checkpoints of an enemy: nothing runs, nothing grows, every end is a sentence."""

import itertools
import struct

import pytest
from tests.checkpoints.files import integer, tensor_pickle, text, torch_zip

from gradwatch.checkpoints import scan
from gradwatch.checkpoints.readers import open_index, verified
from gradwatch.checkpoints.readers.torch_files import STREAM_HEAD, read_stream, read_zip
from gradwatch.diagnosis import diagnose
from gradwatch.errors import GradwatchError
from gradwatch.finding import Severity

COMMAND = "touch canary"
CALLS = [
    ("os", "system"), ("posix", "system"), ("nt", "system"), ("subprocess", "Popen"),
    ("subprocess", "check_output"), ("builtins", "eval"), ("builtins", "exec"),
    ("builtins", "__import__"), ("builtins", "getattr"), ("builtins", "open"),
    ("builtins", "compile"), ("__builtin__", "eval"), ("runpy", "_run_code"), ("sys", "exit"),
    ("importlib", "import_module"), ("shutil", "rmtree"), ("socket", "create_connection"),
    ("pty", "spawn"), ("ctypes", "CDLL"), ("pickle", "loads"), ("_pickle", "loads"),
    ("marshal", "loads"), ("types", "FunctionType"), ("operator", "attrgetter"),
    ("webbrowser", "open"), ("torch", "load"), ("torch.hub", "load"), ("torch.jit", "load"),
    ("numpy", "load"), ("urllib.request", "urlopen"), ("tempfile", "mktemp"),
    ("os.path", "expanduser"), ("builtins", "object.__subclasses__"),
    ("torch", "_utils.__builtins__.eval"), ("code", "InteractiveInterpreter"),
]  # fmt: skip


def forms(module: str, name: str) -> dict[str, bytes]:
    """The same call in all the ways a pickle can write it."""
    plain = f"c{module}\n{name}\n".encode()
    built = text(module) + text(name) + b"\x93"
    argument = text(COMMAND)
    memoed = text(module) + b"q\x01" + text(name) + b"q\x02" + b"00h\x01h\x02\x93"
    return {
        "reduce": b"\x80\x02" + plain + argument + b"\x85R.",
        "stack global": b"\x80\x04" + built + argument + b"\x85R.",
        "memo": b"\x80\x04" + memoed + argument + b"\x85R.",
        "instance": b"(" + argument + f"i{module}\n{name}\n".encode() + b".",
        "object": b"(" + plain + argument + b"o.",
        "new object": b"\x80\x02" + plain + argument + b"\x85\x81.",
        "new with keywords": b"\x80\x04" + built + argument + b"\x85}\x92.",
        "build": b"\x80\x02ccollections\nOrderedDict\n)R" + plain + argument + b"\x85Rb.",
        "as a key": b"\x80\x02}" + plain + argument + b"\x85R" + b"K\x01s.",
        "behind a tensor": tensor_pickle((4,), (1,))[:-1] + b"0" + plain + argument + b"\x85R.",
    }


@pytest.fixture
def canary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "canary").exists()


def test_350_payloads_run_nothing_and_are_refused(tmp_path, canary) -> None:
    tried = 0
    for module, name in CALLS:
        for form, pickle in forms(module, name).items():
            path = tmp_path / "model.pt"
            path.write_bytes(torch_zip(pickle, {"0": b"\0" * 16}))
            with pytest.raises(GradwatchError, match="asks Python to use"):
                read_zip(path)
            tried += 1
            assert form
    assert tried == 350


def test_payloads_through_the_front_door(tmp_path, canary) -> None:
    for number, form in enumerate(("reduce", "stack global", "build")):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(torch_zip(forms("posix", "system")[form]))
        with pytest.raises(GradwatchError, match=r"posix\.system.*do not load it"):
            scan(path)


def test_payload_in_the_old_stream(tmp_path, canary) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(STREAM_HEAD + b"." + forms("posix", "system")["reduce"])
    with pytest.raises(GradwatchError, match="asks Python to use"):
        scan(path)


def test_payload_in_distributed_metadata(tmp_path, canary) -> None:
    (tmp_path / ".metadata").write_bytes(forms("posix", "system")["stack global"])
    with pytest.raises(GradwatchError, match="asks Python to use"):
        scan(tmp_path)


def test_unknown_classes_are_written_down_but_never_imported(tmp_path) -> None:
    pickle = tensor_pickle((4,), (1,))[:-2]  # before SETITEMS and STOP
    pickle += text("args") + b"cno_such_module_anywhere\nSettings\n)\x81}b" + b"u."
    path = tmp_path / "model.pt"
    path.write_bytes(torch_zip(pickle, {"0": b"\0" * 16}))
    index = open_index(path)
    assert "no_such_module_anywhere.Settings" in index.foreign
    assert [tensor.name for tensor in index.tensors] == ["weight"]


UNKNOWN = [
    "_osx_support._read_output", "numpy.f2py.crackfortran.getlincoef", "functools.partial",
    "torch.jit.unsupported_tensor_ops.execWrapper", "_posixsubprocess.fork_exec", "_io.FileIO",
    "torch.utils.bottleneck.__main__.run_prof", "logging.config._resolve", "lib2to3.pgen2.grammar",
    "torch.nn.modules.linear.Linear", "builtins2.eval", "numpy.testing.runstring", "math.cos",
    "collections.namedtuple", "torch.Generator", "pathlib.Path.unlink", "my.Settings",
]  # fmt: skip


def test_a_name_that_is_not_known_is_a_warning_with_every_name(tmp_path) -> None:
    """Published tricks that no list of evil names had, and harmless classes: nobody can tell."""
    calls = [text(n.rpartition(".")[0]) + text(n.rpartition(".")[2]) + b"\x93)R0" for n in UNKNOWN]
    pickle = b"\x80\x04" + b"".join(calls) + tensor_pickle((4,), (1,))[2:]
    (tmp_path / "model.pt").write_bytes(torch_zip(pickle, {"0": bytes(range(16))}))
    diagnosis = diagnose(scan(tmp_path / "model.pt"))
    (finding,) = [f for f in diagnosis.findings if f.check == "foreign-objects"]
    assert finding.severity == Severity.WARNING
    assert all(name in finding.message for name in UNKNOWN)
    assert not diagnosis.line.startswith("Healthy")


SPELLINGS = {
    "escapes": rb"V\u006fs" + b"\n" + rb"V\u0073ystem" + b"\n\x93",
    "escapes in bytes": rb"S'\x6fs'" + b"\n" + rb"S'\x73ystem'" + b"\n\x93",
    "dotted": text("pathlib") + text("os.system") + b"\x93",
    "python 2": b"c__builtin__\neval\n",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_names_are_read_as_python_reads_them(tmp_path, spelling) -> None:
    pickle = b"\x80\x04" + SPELLINGS[spelling] + text("true") + b"\x85R0"
    (tmp_path / "m.pt").write_bytes(
        torch_zip(pickle + tensor_pickle((4,), (1,))[2:], {"0": bytes(16)})
    )
    with pytest.raises(GradwatchError, match=r"asks Python to use|is not usable"):
        read_zip(tmp_path / "m.pt")


def test_a_line_that_straddles_the_end_of_a_frame_is_refused(tmp_path) -> None:
    pickle = (
        b"\x80\x04\x95" + struct.pack("<Q", 5) + b"cmathos\nsystem\n" + text("true") + b"\x85R."
    )
    (tmp_path / "m.pt").write_bytes(torch_zip(pickle))
    with pytest.raises(GradwatchError, match="is not usable"):
        read_zip(tmp_path / "m.pt")


BAD = {
    "nothing": b"",
    "no stop": b"\x80\x02}",
    "empty stack": b"\x80\x02.",
    "protocol 9": b"\x80\x09}.",
    "extension code": b"\x80\x02\x82\x01.",
    "out-of-band buffer": b"\x80\x05\x97.",
    "unknown instruction": b"\x80\x02\xfe.",
    "2 GiB of text announced": b"\x80\x02X\xff\xff\xff\x7fabc",
    "2^64 bytes announced": b"\x80\x04\x8d" + b"\xff" * 8 + b"abc",
    "negative length": b"\x80\x02T\xff\xff\xff\xffabc.",
    "huge number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "negative number size": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "line without end": b"c" + b"a" * 10_000,
    "text as a number": b"Iabc\n.",
    "number of 5000 digits": b"L" + b"9" * 3000 + b"L\n.",
    "recall of nothing": b"\x80\x02h\x07.",
    "mark missing": b"\x80\x02t.",
    "append to a number": b"\x80\x02K\x01K\x02a.",
    "item of a list": b"\x80\x02]K\x01K\x02s.",
    "key without value": b"\x80\x02}(K\x01u.",
    "call of a number": b"\x80\x02K\x01)R.",
    "name from numbers": b"\x80\x04K\x01K\x02\x93.",
    "pop of a mark": b"\x80\x02(.",
    "too many instructions": b"\x80\x02" + b"N0" * 2_100_000 + b".",
    "bombed memory": b"\x80\x02]q\x00" + b"](h\x00h\x00eq\x00" * 60 + b"h\x00.",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_broken_pickles_end_in_a_sentence_or_hold_no_tensor(tmp_path, name) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(torch_zip(BAD[name]))
    ends = r"The pickle in .* is not usable: .*\."
    if name == "bombed memory":  # 2^60 paths to one list
        ends = "nests its contents .* or has more than 500000 lists"
    with pytest.raises(GradwatchError, match=ends):
        read_zip(path)


def test_deep_and_self_containing_lists_end(tmp_path) -> None:
    path = tmp_path / "model.pt"
    deep = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    path.write_bytes(torch_zip(deep))
    with pytest.raises(GradwatchError, match="deep"):
        scan(path)
    path.write_bytes(torch_zip(b"\x80\x02]q\x00h\x00a."))
    with pytest.raises(GradwatchError, match="deep"):
        scan(path)


TENSORS = {
    "stride-0 bomb": (tensor_pickle((10**12,), (0,), count=1), 4, None),
    "overlapping strides": (tensor_pickle((3, 3), (1, 1), count=5), 20, None),
    "reaches outside": (tensor_pickle((5,), (1,), count=4), 16, "outside its storage"),
    "offset outside": (tensor_pickle((1,), (1,), offset=4, count=4), 16, "outside its storage"),
    "negative offset": (tensor_pickle((1,), (1,), offset=-1, count=4), 16, "offset or strides"),
    "negative stride": (tensor_pickle((4,), (-1,), count=4), 16, "offset or strides"),
    "huge stride": (tensor_pickle((2,), (2**70,), count=4), 16, "offset or strides"),
    "huge shape": (tensor_pickle((2**40, 2**40), (1, 1), count=4), 16, "more elements"),
    "negative shape": (tensor_pickle((-4,), (1,), count=4), 16, "negative"),
    "ranks differ": (tensor_pickle((2, 2), (1,), count=4), 16, "offset or strides"),
    "storage too small": (tensor_pickle((4,), (1,), count=4), 12, "has 12 bytes"),
    "storage too large": (tensor_pickle((4,), (1,), count=4), 20, "has 20 bytes"),
    "wrong storage type": (
        tensor_pickle((4,), (1,), count=4, storage="DoubleStorage"), 16, "has 16 bytes",
    ),
    "storage missing": (tensor_pickle((4,), (1,), key="../../etc/passwd"), 16, "is missing"),
    "long name": (tensor_pickle((4,), (1,), name="x" * 5000), 16, "characters"),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_lying_tensors_cost_nothing(tmp_path, name) -> None:
    pickle, size, word = TENSORS[name]
    path = tmp_path / "model.pt"
    path.write_bytes(torch_zip(pickle, {"0": b"\0" * size}))
    if word is None:
        index = verified(read_zip(path))
        assert index.reach <= 36
        assert index.oversized == (("weight",) if name == "stride-0 bomb" else ())
        return
    with pytest.raises(GradwatchError, match=word):
        read_zip(path)


def test_the_same_name_twice_is_refused(tmp_path) -> None:
    one = tensor_pickle((4,), (1,))
    inner = one[len(b"\x80\x02}(") : -2]
    path = tmp_path / "model.pt"
    path.write_bytes(torch_zip(b"\x80\x02}(" + inner + inner + b"u.", {"0": b"\0" * 16}))
    with pytest.raises(GradwatchError, match="twice"):
        read_zip(path)


def test_the_old_stream_is_checked_to_the_last_byte(tmp_path) -> None:
    head = STREAM_HEAD + b"." + b"\x80\x02M\xe9\x03." + b"\x80\x02}" + text("little_endian")
    head += b"\x88s." + tensor_pickle((4,), (1,)) + b"\x80\x02](" + text("0") + b"e."
    storage = struct.pack("<Q", 4) + b"\0" * 16
    path = tmp_path / "model.pt"
    path.write_bytes(head + storage)
    assert [tensor.name for tensor in read_stream(path).tensors] == ["weight"]
    lies = {
        "cut": head + storage[:-1],
        "behind": head + storage + b"x",
        "other count": head + struct.pack("<Q", 2**60) + b"\0" * 16,
        "unknown key": head.replace(text("0") + b"e.", text("1") + b"e.") + storage,
        "big-endian": head.replace(b"\x88s.", b"\x89s.") + storage,
        "other magic": STREAM_HEAD[:-1] + b"\x51" + head[14:] + storage,
        "other protocol": head.replace(b"M\xe9\x03", b"M\xe8\x03") + storage,
        "no list of keys": head[: head.rindex(b"\x80\x02](")] + b"\x80\x02N." + storage,
    }
    for name, raw in lies.items():
        path.write_bytes(raw)
        with pytest.raises(GradwatchError):
            read_stream(path)
        assert name


def test_text_numbers_are_read_as_python_would(tmp_path) -> None:
    from gradwatch.checkpoints.readers.pickles import PickleMachine

    cases = {
        b"I01\n.": True, b"I00\n.": False, b"I-7\n.": -7, b"L12L\n.": 12, b"F1.5\n.": 1.5,
        b"S'abc'\n.": "abc", b"Vabc\n.": "abc", b"K\x05p0\n0g0\n.": 5, integer(-300) + b".": -300,
        b"J\xff\xff\xff\xff.": -1, b"G?\xf0\0\0\0\0\0\0.": 1.0, b"C\x02hi.": b"hi", b")." : (),
        b"(K\x01K\x02l.": [1, 2], b"K\x01K\x02\x86.": (1, 2), b"K\x012\x86.": (1, 1),
    }  # fmt: skip
    for raw, value in cases.items():
        assert PickleMachine(raw, "It").load() == value
    assert len(list(itertools.chain(cases))) == len(cases)
