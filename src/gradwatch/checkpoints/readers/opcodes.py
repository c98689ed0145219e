"""Reads pickles without unpickling: a stack machine that only writes down what it is told.

Nothing is imported, called or hashed. Opcodes, nesting and lengths are bounded; whatever is not
understood is refused. The machine runs in a child process with limits of its own besides.
"""

import struct
from collections.abc import Callable
from typing import Any

from gradwatch.checkpoints.limits import MAX_OPCODES
from gradwatch.checkpoints.readers.symbols import Call, Global, Pairs, Persistent, dangerous
from gradwatch.errors import GradwatchError

_TEXT_LINE = 4096
_LONG_BYTES = 1024


class _Mark:
    """Where a MARK opcode stood."""


MARK = _Mark()


class Machine:
    """One pickle after another from the same bytes; `position` is where the next begins."""

    def __init__(self, data: bytes, what: str, position: int = 0) -> None:
        self.data = data
        self.what = what
        self.position = position
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.foreign: dict[str, None] = {}
        self.left = MAX_OPCODES

    def load(self) -> Any:
        """What the next pickle stands for."""
        self.stack, self.memo = [], {}
        table, data = _TABLE, self.data
        while True:
            if self.left <= 0:
                self.refuse(f"it has more than {MAX_OPCODES} instructions")
            self.left -= 1
            if self.position >= len(data):
                self.refuse("it ends before its last instruction")
            code = data[self.position]
            self.position += 1
            if code == 0x2E:  # STOP
                return self.pop()
            action = table.get(code)
            if action is None:
                raise self.refusal(f"it has the instruction {code:#04x}, which no checkpoint needs")
            action(self)

    def refusal(self, reason: str) -> GradwatchError:
        return GradwatchError(f"{self.what} is not usable: {reason}.")

    def refuse(self, reason: str) -> Any:
        raise self.refusal(reason)

    # -- bytes -----------------------------------------------------------------------------------

    def take(self, length: int) -> bytes:
        end = self.position + length
        if length < 0 or end > len(self.data):
            self.refuse("it announces more bytes than it has")
        found = self.data[self.position : end]
        self.position = end
        return found

    def number(self, form: str) -> int:
        found: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return found

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + _TEXT_LINE)
        if end < 0:
            self.refuse("a line of it does not end")
        return self.text(self.take(end + 1 - self.position)[:-1])

    def text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return raw.decode("latin-1")

    # -- stack -----------------------------------------------------------------------------------

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is MARK:
            self.refuse("it takes from an empty stack")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack or self.stack[-1] is MARK:
            self.refuse("it looks at an empty stack")
        return self.stack[-1]

    def to_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is MARK:
                found = self.stack[index + 1 :]
                del self.stack[index:]
                return found
        self.refuse("it has no mark where it needs one")
        return []

    def named(self, module: Any, name: Any) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            self.refuse("it builds a name from something that is not text")
        if len(module) + len(name) > _TEXT_LINE:
            self.refuse("it names something with a name of more than 4096 characters")
        symbol = Global(module, name)
        if dangerous(symbol):
            raise GradwatchError(
                f"{self.what} asks Python to use {str(symbol)!r} when it is loaded. No checkpoint "
                "needs that: the file is an attack or was made by something unusual. It is not "
                "read; do not load it with torch.load either."
            )
        self.foreign[str(symbol)] = None
        return symbol


def _build(machine: Machine) -> None:
    state = machine.pop()
    target = machine.top()
    if isinstance(target, Call):
        target.state = state


def _append(machine: Machine, found: list[Any]) -> None:
    target = machine.top()
    if isinstance(target, list):
        target.extend(found)
    elif isinstance(target, Call):
        target.items.extend(found)
    else:
        machine.refuse("it appends to something that is no list")


def _set_items(machine: Machine, found: list[Any]) -> None:
    target = machine.top()
    if len(found) % 2:
        machine.refuse("a key of it has no value")
    if not isinstance(target, Pairs | Call):
        machine.refuse("it sets items of something that is no dictionary")
    target.pairs.extend(zip(found[::2], found[1::2], strict=True))


def _dictionary(machine: Machine, found: list[Any]) -> None:
    machine.push(Pairs())
    _set_items(machine, found)


def _reduce(machine: Machine) -> None:
    arguments = machine.pop()
    _call(machine, machine.pop(), arguments)


def _call(machine: Machine, function: Any, arguments: Any) -> None:
    if not isinstance(function, Global) or not isinstance(arguments, tuple):
        machine.refuse("it calls something that has no name")
    if str(function) == "collections.OrderedDict" and not arguments:
        machine.push(Pairs())
    else:
        machine.push(Call(function, arguments))


def _new_with_keywords(machine: Machine) -> None:
    machine.pop()
    _reduce(machine)


def _old_object(machine: Machine) -> None:
    found = machine.to_mark()
    if not found:
        machine.refuse("it makes an object of no class")
    _call(machine, found[0], tuple(found[1:]))


def _old_instance(machine: Machine) -> None:
    symbol = machine.named(machine.line(), machine.line())
    _call(machine, symbol, tuple(machine.to_mark()))


def _stack_global(machine: Machine) -> None:
    name = machine.pop()
    machine.push(machine.named(machine.pop(), name))


def _recall(machine: Machine, key: int) -> None:
    if key not in machine.memo:
        machine.refuse("it recalls something it never stored")
    machine.push(machine.memo[key])


def _store(machine: Machine, key: int) -> None:
    machine.memo[key] = machine.top()


def _tuple(machine: Machine, size: int) -> None:
    found = [machine.pop() for _ in range(size)]
    machine.push(tuple(reversed(found)))


def _long(machine: Machine, length: int) -> None:
    if not 0 <= length <= _LONG_BYTES:
        machine.refuse(f"it has a number of {length} bytes")
    machine.push(int.from_bytes(machine.take(length), "little", signed=True))


def _text_number(machine: Machine, make: Callable[[str], Any]) -> None:
    word = machine.line().rstrip("L")
    try:
        machine.push(make(word) if len(word) < 1000 else machine.refuse("a number is too long"))
    except ValueError:
        machine.refuse("a number of it is none")


def _integer(word: str) -> int | bool:
    return {"00": False, "01": True}[word] if word in ("00", "01") else int(word)


def _text_key(machine: Machine) -> int:
    _text_number(machine, int)
    key: int = machine.pop()
    return key


def _persistent(machine: Machine, key: Any) -> None:
    machine.push(Persistent(key))


def _constant(value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.push(value)


def _drop(machine: Machine) -> None:
    if machine.stack and machine.stack[-1] is MARK:
        machine.stack.pop()
    else:
        machine.pop()


def _drop_mark(machine: Machine) -> None:
    machine.to_mark()


def _version(machine: Machine) -> None:
    if machine.take(1)[0] > 5:
        machine.refuse("it has a protocol above 5")


_TABLE: dict[int, Callable[[Machine], Any]] = {
    0x80: _version,
    0x95: lambda m: m.take(8),  # FRAME: only a hint for buffering
    ord("("): _constant(MARK),
    ord("0"): _drop,
    ord("1"): _drop_mark,
    ord("2"): lambda m: m.push(m.top()),
    # constants and numbers
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("K"): lambda m: m.push(m.number("<B")),
    ord("M"): lambda m: m.push(m.number("<H")),
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("G"): lambda m: m.push(m.number(">d")),
    0x8A: lambda m: _long(m, m.number("<B")),
    0x8B: lambda m: _long(m, m.number("<i")),
    ord("I"): lambda m: _text_number(m, _integer),
    ord("L"): lambda m: _text_number(m, int),
    ord("F"): lambda m: _text_number(m, float),
    # text and bytes
    ord("X"): lambda m: m.push(m.text(m.take(m.number("<I")))),
    0x8C: lambda m: m.push(m.text(m.take(m.number("<B")))),
    0x8D: lambda m: m.push(m.text(m.take(m.number("<Q")))),
    ord("U"): lambda m: m.push(m.text(m.take(m.number("<B")))),
    ord("T"): lambda m: m.push(m.text(m.take(m.number("<i")))),
    ord("S"): lambda m: m.push(m.line().strip("'\"")),
    ord("V"): lambda m: m.push(m.line()),
    ord("B"): lambda m: m.push(m.take(m.number("<I"))),
    ord("C"): lambda m: m.push(m.take(m.number("<B"))),
    0x8E: lambda m: m.push(m.take(m.number("<Q"))),
    0x96: lambda m: m.push(m.take(m.number("<Q"))),
    # containers
    ord(")"): _constant(()),
    ord("t"): lambda m: m.push(tuple(m.to_mark())),
    0x85: lambda m: _tuple(m, 1),
    0x86: lambda m: _tuple(m, 2),
    0x87: lambda m: _tuple(m, 3),
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.to_mark()),
    ord("a"): lambda m: _append(m, [m.pop()]),
    ord("e"): lambda m: _append(m, m.to_mark()),
    ord("}"): lambda m: m.push(Pairs()),
    ord("d"): lambda m: _dictionary(m, m.to_mark()),
    ord("s"): lambda m: _set_items(m, [m.pop(), m.pop()][::-1]),
    ord("u"): lambda m: _set_items(m, m.to_mark()),
    0x8F: lambda m: m.push([]),
    0x90: lambda m: _append(m, m.to_mark()),
    0x91: lambda m: m.push(m.to_mark()),
    # memory
    ord("p"): lambda m: _store(m, _text_key(m)),
    ord("q"): lambda m: _store(m, m.number("<B")),
    ord("r"): lambda m: _store(m, m.number("<I")),
    0x94: lambda m: _store(m, len(m.memo)),
    ord("g"): lambda m: _recall(m, _text_key(m)),
    ord("h"): lambda m: _recall(m, m.number("<B")),
    ord("j"): lambda m: _recall(m, m.number("<I")),
    # names, and what would be calls
    ord("c"): lambda m: m.push(m.named(m.line(), m.line())),
    0x93: _stack_global,
    ord("R"): _reduce,
    0x81: _reduce,
    0x92: _new_with_keywords,
    ord("o"): _old_object,
    ord("i"): _old_instance,
    ord("b"): _build,
    ord("Q"): lambda m: _persistent(m, m.pop()),
    ord("P"): lambda m: _persistent(m, m.line()),
}
