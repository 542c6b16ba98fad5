"""PTX as text -> its kernels, as lists of instructions. Only the forms that NVRTC emits for
our kernels: another one is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
LINE = re.compile(r"(?:@(?P<negated>!?)(?P<predicate>%\w+)\s+)?(?P<op>[a-z][\w.]*)\s*(?P<operands>.*)")
DECLARED = re.compile(
    r"\.align\s+(?P<align>\d+)\s+\.(?P<type>\w+)\s+(?P<name>[\w$]+)(?:\[(?P<length>\d*)\])?(?:\s*=\s*(?P<value>.*))?"
)


@dataclass
class Instruction:
    """`op` with its dots, as ("ld", "global", "f32"), and the operands as text."""

    op: tuple[str, ...]
    operands: list[str]
    predicate: str | None  # of a branch
    negated: bool
    line: int  # of the text

    def __str__(self) -> str:
        return f"{'.'.join(self.op)} {', '.join(self.operands)} (line {self.line} of the PTX)"


@dataclass
class Variable:
    """Of shared, local or global memory. length: in bytes; None: as many as the launch gives."""

    name: str
    align: int
    length: int | None
    content: bytes = b""


@dataclass
class Kernel:
    """One entry of a module. types: of its registers, by prefix; lines: (number, text) of its code."""

    name: str
    parameters: dict[str, str] = field(default_factory=dict)  # name -> type
    types: dict[str, str] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)
    shared: list[Variable] = field(default_factory=list)
    local: list[Variable] = field(default_factory=list)

    @cached_property
    def code(self) -> tuple[list[Instruction], dict[str, int]]:
        """(instructions, labels: the instruction that each stands before), read when the kernel first runs."""
        instructions: list[Instruction] = []
        labels = {}
        for number, line in self.lines:
            if line[-1] == ":":
                labels[line[:-1]] = len(instructions)
            else:
                instructions.append(_instruction(line, number))
        return instructions, labels


@dataclass
class Module:
    """What one compilation gives."""

    target: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    shared: list[Variable] = field(default_factory=list)  # of all kernels
    constants: list[Variable] = field(default_factory=list)


def parse(text: str) -> Module:
    """ValueError names a line that is not understood."""
    module = Module(re.search(r"^\.target (\w+)", text, re.M)[1])
    kernel: Kernel | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("//")[0].strip().rstrip(";,").rstrip()
        if (
            not line
            or line in ("{", "}", "(", ")")
            or line.startswith((".version", ".target", ".address_size", ".pragma"))
        ):
            continue
        try:
            if line[0] != ".":
                kernel.lines.append((number, line))
            elif m := re.match(r"\.visible \.entry ([\w$]+)\(", line):
                kernel = module.kernels[m[1]] = Kernel(m[1])
            elif m := re.fullmatch(r"\.param (?:\.align \d+ )?\.(\w+) ([\w$]+)(?:\[\d+\])?", line):
                kernel.parameters[m[2]] = m[1]
            elif line.startswith((".maxntid", ".minnctapersm")):
                pass
            elif m := re.fullmatch(r"\.reg \.(\w+)\s+(%\w+?)(?:<\d+>)?", line):
                kernel.types[m[2]] = m[1]
            elif m := re.match(r"(?:\.visible |\.extern )?\.(shared|local|global|const) ", line):
                found = _variable(line)
                into = {"shared": module.shared if kernel is None else kernel.shared, "local": kernel and kernel.local}
                into.get(m[1], module.constants).append(found)
            else:
                raise _not_understood(number, line)
        except (AttributeError, TypeError, KeyError) as error:
            raise _not_understood(number, line) from error
    return module


def _variable(line: str) -> Variable:
    m = DECLARED.search(line)
    size = SIZES[m["type"][1:]]
    length = size if m["length"] is None else size * int(m["length"]) if m["length"] else None
    content = b""
    if m["value"]:
        dtype = np.dtype(f"u{size}")
        numbers = [constant(v, m["type"]) for v in m["value"].strip("{}").split(",")]
        content = np.array([n.view(dtype) if hasattr(n, "view") else n for n in numbers], dtype).tobytes()
    return Variable(m["name"], int(m["align"]), length, content)


def constant(text: str, kind: str) -> Any:
    """A number of the text as a NumPy scalar of a type: 12, -3, 0x1F, 0f3F800000, 0d3FF0000000000000."""
    text = text.strip()
    if text.startswith("0f"):
        return np.uint32(int(text[2:], 16)).view(np.float32)
    if text.startswith("0d"):
        return np.uint64(int(text[2:], 16)).view(np.float64)
    bits = 8 * SIZES[kind[1:]]
    return np.dtype(f"u{bits // 8}").type(int(text, 0) & ((1 << bits) - 1))


def _not_understood(number: int, line: str) -> ValueError:
    return ValueError(f"line {number} of the PTX is not understood: {line}")


def _instruction(line: str, number: int) -> Instruction:
    m = LINE.fullmatch(line)
    if m is None:
        raise _not_understood(number, line)
    operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", m["operands"])
    return Instruction(
        tuple(m["op"].split(".")), [o.strip() for o in operands], m["predicate"], bool(m["negated"]), number
    )
