"""Reads pickles without unpickling: a stack machine that only notes what it is asked to do.

Nothing is imported, called or hashed. Opcodes, nesting and lengths are bounded; whatever is not
understood is refused, and so is what CPython's and torch's machines could understand differently.
The machine runs in a child process with limits of its own besides.
"""

import re
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gradwatch.checkpoints.limits import MAX_OPCODES
from gradwatch.errors import GradwatchError

_MAX_LINE = 4096
_MAX_INTEGER_BYTES = 1024
_MAX_NAMES = 1000
"""Different things that one pickle may refer to; a whole model, pickled, refers to some dozens."""
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,999})")
"""Integers that CPython's two machines read alike: to one of them `010` is eight."""

# -- what a pickle stands for: names of things, never the things ---------------------------------


@dataclass(frozen=True, slots=True)
class PickledName:
    """`module.name`, written down; nothing is imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class PickledCall:
    """A call the pickle asks for: remembered, never made."""

    function: Any
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class PickledDict:
    """A dictionary as a list of pairs: nothing is hashed, so keys cannot be made to collide."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class PickledReference:
    """A persistent id, which refers to something outside the pickle: a tensor's storage."""

    key: Any


_HARMLESS_BUILTINS = frozenset([
    "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list",
    "object", "range", "set", "slice", "str", "tuple",
])  # fmt: skip
_DANGEROUS_MODULES = frozenset([
    "asyncio", "bdb", "cProfile", "code", "codeop", "commands", "ctypes", "dill", "distutils",
    "doctest", "ensurepip", "ftplib", "http", "idlelib", "importlib", "imp", "inspect", "marshal",
    "multiprocessing", "nt", "operator", "os", "pdb", "pickle", "_pickle", "cloudpickle",
    "joblib", "pip", "pkgutil", "platform", "posix", "posixpath", "profile", "pty", "pydoc",
    "requests", "runpy", "setuptools", "shelve", "shutil", "signal", "site", "smtplib", "socket",
    "socketserver", "ssl", "subprocess", "sys", "tempfile", "test", "threading", "_thread",
    "timeit", "trace", "types", "urllib", "uuid", "venv", "webbrowser", "xmlrpc", "zipimport",
])  # fmt: skip
_DANGEROUS_NAMES = frozenset([
    "torch.hub.load",
    "torch.load",
    "torch.serialization.load",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "numpy.load",
    "numpy.testing._private.utils.runstring",
    "torch._dynamo.guards.GuardBuilder.get",
    "torch.utils._config_module.load_config",
    "torch.utils.collect_env.run",
    "torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression",
])  # fmt: skip


_KNOWN = frozenset(
    f"{module}.{name}"
    for module, names in {
        "torch": (
            "Size Tensor device dtype bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 "
            "float16 float32 float64 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz "
            "float8_e5m2fnuz float8_e8m0fnu complex32 complex64 complex128 qint8 quint8 "
            "qint32 BoolStorage ByteStorage CharStorage ShortStorage IntStorage LongStorage "
            "HalfStorage BFloat16Storage FloatStorage DoubleStorage ComplexFloatStorage "
            "ComplexDoubleStorage UntypedStorage per_tensor_affine per_channel_affine"
        ),
        "torch.storage": "UntypedStorage TypedStorage",
        "torch.nn.parameter": "Parameter Buffer",
        "torch.serialization": "_get_layout",
        "torch._tensor": "_rebuild_from_type_v2",
        "torch._utils": (
            "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
            "_rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor "
            "_rebuild_meta_tensor_no_storage"
        ),
        "torch.distributed.checkpoint.metadata": (
            "Metadata MetadataIndex StorageMeta TensorStorageMetadata BytesStorageMetadata "
            "ChunkStorageMetadata TensorProperties _MEM_FORMAT_ENCODING"
        ),
        "torch.distributed.checkpoint.filesystem": "_StorageInfo",
        "numpy": "dtype ndarray",
        "numpy.core.multiarray": "scalar _reconstruct",
        "numpy._core.multiarray": "scalar _reconstruct",
        "numpy.core.numeric": "_frombuffer",
        "numpy._core.numeric": "_frombuffer",
        "collections": "OrderedDict defaultdict Counter deque",
        "argparse": "Namespace",
        "pathlib": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
        "pathlib._local": "PosixPath WindowsPath",
        "_codecs": "encode",
        "builtins": " ".join(_HARMLESS_BUILTINS),
    }.items()
    for name in names.split()
)
"""What checkpoints refer to, and what runs nothing: all else is somebody's own code."""


def unknown(names: Iterable[str]) -> tuple[str, ...]:
    """Those that are none of what checkpoints usually refer to."""
    return tuple(name for name in names if name not in _KNOWN)


def dangerous(symbol: PickledName) -> bool:
    """Whether no checkpoint has a reason to name this."""
    package = symbol.module.partition(".")[0]
    words = symbol.name.split(".")
    if package in ("builtins", "__builtin__"):
        return symbol.name not in _HARMLESS_BUILTINS
    if any(word.startswith("__") and word != "__main__" for word in words):
        return True
    # `pathlib` and `os.system`: a name of several words is looked up through what a module imports
    reached = {package, *words[:-1]}
    return not _DANGEROUS_MODULES.isdisjoint(reached) or str(symbol) in _DANGEROUS_NAMES


# -- the machine -----------------------------------------------------------------------------------

_SET = PickledName("builtins", "set")
_MARK = object()
"""Stands on the stack where a MARK opcode was."""


class PickleMachine:
    """Reads one pickle after another from the same bytes; `position` is where the next begins."""

    def __init__(self, data: bytes, source: str) -> None:
        self.data = data
        self.source = source  # the subject of the sentences that refuse
        self.position = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.names: dict[str, None] = {}  # all that it refers to, in order
        self.storages: dict[str, tuple[str, Any]] = {}  # type and size of each, as first given
        self.opcodes_left = MAX_OPCODES
        self.frame_end = 0

    def load(self) -> Any:
        """What the next pickle stands for."""
        self.stack, self.memo, self.frame_end = [], {}, 0
        actions, data = _ACTIONS, self.data
        while True:
            if self.opcodes_left <= 0:
                self.refuse(f"it has more than {MAX_OPCODES} instructions")
            self.opcodes_left -= 1
            if self.position >= len(data):
                self.refuse("it ends before its last instruction")
            code = data[self.position]
            self.position += 1
            if code == 0x2E:  # STOP
                return self.pop()
            action = actions.get(code)
            if action is None:
                self.refuse(f"it has the instruction {code:#04x}, which no checkpoint needs")
            action(self)

    def refuse(self, reason: str) -> NoReturn:
        """Stop reading with a sentence that names the file and the reason."""
        raise GradwatchError(f"{self.source} is not usable: {reason}.")

    def take(self, length: int) -> bytes:
        """The next bytes of the pickle."""
        end = self.position + length
        if length < 0 or end > len(self.data):
            self.refuse("it announces more bytes than it has")
        if self.position < self.frame_end < end:
            # A machine that reads frame by frame forgets the beginning, and sees another name.
            self.refuse("an instruction of it goes on behind the end of its frame")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, form: str) -> Any:
        """The next bytes as one number of a `struct` format."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        """The text up to the next line feed, as protocol 0 writes its arguments."""
        return self.text(self.raw_line())

    def raw_line(self) -> bytes:
        """The bytes up to the next line feed, which is passed over."""
        end = self.data.find(b"\n", self.position, self.position + _MAX_LINE)
        if end < 0:
            self.refuse("a line of it does not end")
        return self.take(end + 1 - self.position)[:-1]

    def text(self, raw: bytes) -> str:
        """Text as CPython decodes it; what is none is refused."""
        try:
            return raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self.refuse("a text of it is none")

    def push(self, value: Any) -> None:
        """Put a value on top of the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Take the topmost value away; a mark is none."""
        if not self.stack or self.stack[-1] is _MARK:
            self.refuse("it takes from an empty stack")
        return self.stack.pop()

    def top(self) -> Any:
        """The topmost value, which stays."""
        if not self.stack or self.stack[-1] is _MARK:
            self.refuse("it looks at an empty stack")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        """Take away everything above the newest mark, and the mark."""
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                values = self.stack[index + 1 :]
                del self.stack[index:]
                return values
        return self.refuse("it has no mark where it needs one")

    def named(self, module: Any, name: Any) -> PickledName:
        """What unpickling would import; the whole file is refused if that is dangerous."""
        if not isinstance(module, str) or not isinstance(name, str):
            self.refuse("it builds a name from something that is not text")
        if len(module) + len(name) > _MAX_LINE:
            self.refuse("it names something with a name of more than 4096 characters")
        # names of Python 2, by which CPython and torch find the modules of today
        module, name = NAME_MAPPING.get((module, name), (module, name))
        symbol = PickledName(IMPORT_MAPPING.get(module, module), name)
        if dangerous(symbol):
            raise GradwatchError(
                f"{self.source} asks Python to use {str(symbol)!r} when it is loaded. No "
                "checkpoint needs that: the file is an attack or was made by something unusual. "
                "It is not read; do not load it with torch.load either."
            )
        self.names[str(symbol)] = None
        if len(self.names) > _MAX_NAMES:
            self.refuse(f"it refers to more than {_MAX_NAMES} different things")
        return symbol

    # -- opcodes ---------------------------------------------------------------------------------

    def text_integer(self) -> int:
        """An integer written out as text; LONG ends in an L."""
        word = self.line().removesuffix("L")
        if not _DECIMAL.fullmatch(word):
            self.refuse("a number of it is none")
        return int(word)

    def text_boolean(self) -> int | bool:
        """INT, which protocol 0 writes truth values as."""
        if self.data[self.position : self.position + 3] in (b"00\n", b"01\n"):
            return self.line() == "01"
        return self.text_integer()

    def text_float(self) -> float:
        """FLOAT: a number written out as text."""
        try:
            return float(self.line())
        except ValueError:
            self.refuse("a number of it is none")

    def string(self) -> str:
        """STRING: text between quotes, from the days when bytes were text; without escapes."""
        line = self.line()
        if len(line) < 2 or line[0] != line[-1] or line[0] not in "'\"" or "\\" in line:
            self.refuse("it has a text in quotes with escapes in it, which no checkpoint needs")
        return line[1:-1]

    def unicode(self) -> str:
        """UNICODE: a line of text in which every character may be an escape."""
        try:
            return self.raw_line().decode("raw-unicode-escape")
        except UnicodeDecodeError:
            self.refuse("a text of it is none")

    def begin_frame(self) -> None:
        """FRAME: so many bytes belong together."""
        length = self.number("<Q")
        if self.position < self.frame_end or self.position + length > len(self.data):
            self.refuse("its frames lie over one another or reach past its end")
        self.frame_end = self.position + length

    def push_integer(self, length: int) -> None:
        """LONG1 and LONG4: a little-endian integer of this many bytes."""
        if not 0 <= length <= _MAX_INTEGER_BYTES:
            self.refuse(f"it has a number of {length} bytes")
        self.push(int.from_bytes(self.take(length), "little", signed=True))

    def protocol(self) -> None:
        """PROTO: the version of the instructions that follow."""
        if self.take(1)[0] > 5:
            self.refuse("it has a protocol above 5")

    def drop(self) -> None:
        """POP, which takes marks away too."""
        if self.stack and self.stack[-1] is _MARK:
            self.stack.pop()
        else:
            self.pop()

    def push_tuple(self, size: int) -> None:
        """TUPLE1 to TUPLE3: the topmost values as one tuple."""
        values = [self.pop() for _ in range(size)]
        self.push(tuple(reversed(values)))

    def append(self, values: list[Any]) -> None:
        """APPEND and APPENDS: add to the list below, or to an object that would be one."""
        target = self.top()
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, PickledCall):
            target.items.extend(values)
        else:
            self.refuse("it appends to something that is no list")

    def set_items(self, values: list[Any]) -> None:
        """SETITEM and SETITEMS: keys and values in turn, for the dictionary below."""
        target = self.top()
        if len(values) % 2:
            self.refuse("a key of it has no value")
        if not isinstance(target, PickledDict | PickledCall):
            self.refuse("it sets items of something that is no dictionary")
        target.pairs.extend(zip(values[::2], values[1::2], strict=True))

    def make_dictionary(self) -> None:
        """DICT: a dictionary of everything above the newest mark."""
        values = self.pop_to_mark()
        self.push(PickledDict())
        self.set_items(values)

    def store(self, key: int) -> None:
        """PUT and MEMOIZE: remember the topmost value under a number."""
        self.memo[key] = self.top()

    def recall(self, key: int) -> None:
        """GET: push what was remembered under a number."""
        if key not in self.memo:
            self.refuse("it recalls something it never stored")
        self.push(self.memo[key])

    def stack_global(self) -> None:
        """STACK_GLOBAL: module and name are on the stack; pushes what they name."""
        name = self.pop()
        self.push(self.named(self.pop(), name))

    def call(self, function: Any, arguments: Any) -> None:
        """Push what the call would give: a description of it, since nothing is ever called."""
        if not isinstance(function, PickledName) or not isinstance(arguments, tuple):
            self.refuse("it calls something that has no name")
        if str(function) == "collections.OrderedDict" and not arguments:
            self.push(PickledDict())
        else:
            self.push(PickledCall(function, arguments))

    def reduce(self) -> None:
        """REDUCE and NEWOBJ: would call what lies below the arguments."""
        arguments = self.pop()
        self.call(self.pop(), arguments)

    def new_with_keywords(self) -> None:
        """NEWOBJ_EX: as NEWOBJ; the keyword arguments are dropped."""
        self.pop()
        self.reduce()

    def reference(self, key: Any) -> None:
        """BINPERSID and PERSID: would ask torch for a storage."""
        if isinstance(key, tuple) and len(key) >= 5 and isinstance(key[2], str):
            given = str(key[1]), key[4]
            if self.storages.setdefault(key[2], given) != given:  # torch goes by the first
                self.refuse(f"it takes the storage {key[2][:80]!r} for two different ones")
        self.push(PickledReference(key))

    def make_object(self) -> None:
        """OBJ: class and arguments lie above the newest mark."""
        values = self.pop_to_mark()
        if not values:
            self.refuse("it makes an object of no class")
        self.call(values[0], tuple(values[1:]))

    def make_instance(self) -> None:
        """INST: the class is given as text, the arguments lie above the newest mark."""
        symbol = self.named(self.line(), self.line())
        self.call(symbol, tuple(self.pop_to_mark()))

    def set_state(self) -> None:
        """BUILD: would hand the state to `__setstate__` of the object below it."""
        state = self.pop()
        target = self.top()
        if isinstance(target, PickledCall):
            target.state = state
        elif not isinstance(target, PickledDict):  # an OrderedDict may have attributes
            self.refuse("it gives attributes to something that has none")


_ACTIONS: dict[int, Callable[[PickleMachine], Any]] = {
    0x80: PickleMachine.protocol,  # PROTO
    0x95: PickleMachine.begin_frame,  # FRAME
    ord("("): lambda m: m.push(_MARK),
    ord("0"): PickleMachine.drop,
    ord("1"): lambda m: m.pop_to_mark(),
    ord("2"): lambda m: m.push(m.top()),
    # constants and numbers
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),  # NEWTRUE
    0x89: lambda m: m.push(False),  # NEWFALSE
    ord("K"): lambda m: m.push(m.number("<B")),
    ord("M"): lambda m: m.push(m.number("<H")),
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("G"): lambda m: m.push(m.number(">d")),
    0x8A: lambda m: m.push_integer(m.number("<B")),  # LONG1
    0x8B: lambda m: m.push_integer(m.number("<i")),  # LONG4
    ord("I"): lambda m: m.push(m.text_boolean()),
    ord("L"): lambda m: m.push(m.text_integer()),
    ord("F"): lambda m: m.push(m.text_float()),
    # text and bytes
    ord("X"): lambda m: m.push(m.text(m.take(m.number("<I")))),
    0x8C: lambda m: m.push(m.text(m.take(m.number("<B")))),  # SHORT_BINUNICODE
    0x8D: lambda m: m.push(m.text(m.take(m.number("<Q")))),  # BINUNICODE8
    ord("U"): lambda m: m.push(m.text(m.take(m.number("<B")))),
    ord("T"): lambda m: m.push(m.text(m.take(m.number("<i")))),
    ord("S"): lambda m: m.push(m.string()),
    ord("V"): lambda m: m.push(m.unicode()),
    ord("B"): lambda m: m.push(m.take(m.number("<I"))),
    ord("C"): lambda m: m.push(m.take(m.number("<B"))),
    0x8E: lambda m: m.push(m.take(m.number("<Q"))),  # BINBYTES8
    0x96: lambda m: m.push(m.take(m.number("<Q"))),  # BYTEARRAY8
    # containers
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.pop_to_mark())),
    0x85: lambda m: m.push_tuple(1),  # TUPLE1
    0x86: lambda m: m.push_tuple(2),  # TUPLE2
    0x87: lambda m: m.push_tuple(3),  # TUPLE3
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.pop_to_mark()),
    ord("a"): lambda m: m.append([m.pop()]),
    ord("e"): lambda m: m.append(m.pop_to_mark()),
    ord("}"): lambda m: m.push(PickledDict()),
    ord("d"): PickleMachine.make_dictionary,
    ord("s"): lambda m: m.set_items([m.pop(), m.pop()][::-1]),
    ord("u"): lambda m: m.set_items(m.pop_to_mark()),
    0x8F: lambda m: m.push(PickledCall(_SET, ())),  # EMPTY_SET
    0x90: lambda m: m.append(m.pop_to_mark()),  # ADDITEMS
    0x91: lambda m: m.push(PickledCall(_SET, tuple(m.pop_to_mark()))),  # FROZENSET
    # memory
    ord("p"): lambda m: m.store(m.text_integer()),
    ord("q"): lambda m: m.store(m.number("<B")),
    ord("r"): lambda m: m.store(m.number("<I")),
    0x94: lambda m: m.store(len(m.memo)),  # MEMOIZE
    ord("g"): lambda m: m.recall(m.text_integer()),
    ord("h"): lambda m: m.recall(m.number("<B")),
    ord("j"): lambda m: m.recall(m.number("<I")),
    # names, and what would be calls
    ord("c"): lambda m: m.push(m.named(m.line(), m.line())),
    0x93: PickleMachine.stack_global,  # STACK_GLOBAL
    ord("R"): PickleMachine.reduce,
    0x81: PickleMachine.reduce,  # NEWOBJ
    0x92: PickleMachine.new_with_keywords,  # NEWOBJ_EX
    ord("o"): PickleMachine.make_object,
    ord("i"): PickleMachine.make_instance,
    ord("b"): PickleMachine.set_state,
    ord("Q"): lambda m: m.reference(m.pop()),
    ord("P"): lambda m: m.reference(m.line()),
}
