"""A kernel's basic blocks as Python functions over arrays.

A register that one basic block alone uses is a local variable of its function. Others live in `Registers`; they are
read at their first use, and written at the end, for the threads that ran.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from . import operations
from .machine import GUARD, LOCAL, MOST_PARAMETER, SHARED, PTXError
from .parse import SIZES, Instruction, Kernel, Module, constant

DTYPES = {
    "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2", "b32": "u4", "u32": "u4", "s32": "i4",
    "b64": "u8", "u64": "u8", "s64": "i8", "f32": "f4", "f64": "f8", "pred": "?",
}  # fmt: skip
REGISTER = re.compile(r"%[A-Za-z]\w*(?:\.[xyz])?")
BINARY = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}
ROUNDINGS = {f"r{how}{integer}" for how in "nzmp" for integer in ("", "i")}
ENDS = ("bra", "ret", "bar", "trap")
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
SMALL = ("add", "sub", "mul", "fma", "div", "rcp", "ex2", "cvt")  # may make a subnormal number of normal ones


class BasicBlock:
    """Instructions that run one after the other.

    end      how it ends: "bra", "ret", "bar" (barrier.sync), "trap" or "" (the next one follows)
    target   the block that a branch leads to;  next: the one that follows
    code     code(registers, machine, merge, active) -> the predicate of a conditional branch, or None. merge: the
             threads whose registers are written, None: all that have not ended; active: those that run, None: all
    size     how many instructions
    """

    def __init__(self, number: int, instructions: list[Instruction], end: Instruction | None) -> None:
        self.number, self.next, self.target = number, number + 1, -1
        self.instructions = instructions
        self.last = end
        self.end = end.op[0] if end else ""
        self.conditional = end is not None and end.predicate is not None
        self.negated = end is not None and end.negated
        self.size = len(instructions) + (end is not None)
        self.code: Callable | None = None


class Translated:
    """A kernel, ready to run; each basic block is translated when it first runs."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.kernel = kernel
        self.blocks, starts = _cut(kernel)
        self.symbols, self.guards, self.static_shared, self.local_size = _layout(module, kernel)
        self.constants = {v.name: v for v in module.constants}
        for block in self.blocks:
            if block.end == "bra":
                block.target = starts[kernel.code[1][block.last.operands[0]]]
        self.used: dict[str, set[int]] = {}
        for block in self.blocks:
            for i in (*block.instructions, *([block.last] if block.last else [])):
                for name in REGISTER.findall(" ".join((*i.operands, i.predicate or ""))):
                    self.used.setdefault(name, set()).add(block.number)

    def run(self, block: BasicBlock) -> Callable:
        if block.code is None:
            block.code = _compiled(self, block)
        return block.code

    def kind_of(self, register: str) -> str:
        """The type that a register is declared with."""
        types = self.kernel.types
        return types[register] if register in types else types[register.rstrip("0123456789")]


def _ends(x: Instruction) -> bool:
    """Whether a basic block ends with it."""
    return x.op[0] in ENDS and x.op[:2] != ("bar", "warp")


def _cut(kernel: Kernel) -> tuple[list[BasicBlock], dict[int, int]]:
    """The basic blocks, and the number of the one that begins at an instruction."""
    instructions, labels = kernel.code
    ends = {i + 1 for i, x in enumerate(instructions) if _ends(x)}
    at = sorted({0, *labels.values(), *ends} - {len(instructions)})
    blocks, starts = [], {}
    for number, (a, b) in enumerate(zip(at, [*at[1:], len(instructions)])):
        part = instructions[a:b]
        last = part[-1] if _ends(part[-1]) else None
        starts[a] = number
        blocks.append(BasicBlock(number, part[:-1] if last else part, last))
    return blocks, starts


def _layout(module: Module, kernel: Kernel) -> tuple[dict[str, tuple[str, int]], list, int, int]:
    """({name: (space, address)} of variables, guards between the shared ones, their size, that of the local ones)."""
    symbols: dict[str, tuple[str, int]] = {}
    guards, size, dynamic = [], 0, None
    text = " ".join(o for i in kernel.code[0] for o in i.operands)
    for v in (*kernel.shared, *module.shared):
        if v.length is None:
            dynamic = v if re.search(rf"(?<![\w$]){re.escape(v.name)}(?![\w$])", text) else dynamic
            continue
        size = -(-size // max(v.align, 16)) * max(v.align, 16)
        symbols[v.name] = "shared", size
        guards.append((size + v.length, size + v.length + GUARD))
        size += v.length + GUARD
    if dynamic is not None:
        size = -(-size // 128) * 128
        symbols[dynamic.name] = "shared", size
    at = 0
    for v in kernel.local:
        at = -(-at // v.align) * v.align
        symbols[v.name] = "local", at
        at += v.length
    for number, name in enumerate(kernel.parameters):
        symbols[name] = "param", number * MOST_PARAMETER
    return symbols, guards, size, at


# ------------------------------------------------------------------------------------------------------ one basic block


class _Writer:
    """The source of a basic block's function."""

    def __init__(self, translated: Translated, block: BasicBlock) -> None:
        self.translated, self.block = translated, block
        self.lines: list[str] = []
        self.names: dict[str, Any] = {**vars(operations), "np": np}
        self.known: set[str] = set()  # registers that are local variables by now
        self.written: list[str] = []
        self.constants: dict[Any, str] = {}
        self.op: tuple[str, ...] = ()  # of the instruction that is being written
        self.flushed: set[str] = set()  # variables that hold no subnormal FP32 numbers

    def local(self, register: str) -> str:
        """The register as a variable; read first, if it was not yet."""
        name = register[1:].replace(".", "_")
        if name not in self.known:
            if "." in register or register in ("%laneid",):
                self.lines.append(f"{name} = M.special[{register[1:]!r}]")
            else:
                self.lines.append(f"{name} = R[{name!r}]")
            self.known.add(name)
        return name

    def value(self, operand: str, kind: str) -> str:
        """An expression for an operand that is read as a type."""
        if operand.startswith("%"):
            name = self.local(operand)
            have = "b32" if "." in operand else self.translated.kind_of(operand)
            if kind != "f32" or "ftz" not in self.op or name in self.flushed:
                return _as(name, have, kind)
            if f"{name}_z" not in self.flushed:
                self.lines.append(f"{name}_z = flushed({_as(name, have, kind)})")
                self.flushed.add(f"{name}_z")
            return f"{name}_z"
        symbols = self.translated.symbols
        if operand in symbols:
            return self.constant(symbols[operand][1], "u64" if kind.endswith("64") else "u32")
        if operand in self.translated.constants:
            return f"M.constant({operand!r})"
        name = self.constant(operand, kind)
        return f"flushed({name})" if kind == "f32" and "ftz" in self.op and self.is_small(name) else name

    def is_small(self, constant: str) -> bool:
        return 0 < abs(self.names[constant][0]) < 2.0**-126

    def constant(self, text: Any, kind: str) -> str:
        """The name of an array of one number."""
        if kind == "pred":
            number = np.bool_(int(text, 0) & 1)
        else:
            number = constant(str(text), "u" + kind[1:] if kind[0] in "bs" else kind)
            number = (
                np.array([number]).view(DTYPES[kind])[0] if kind[0] in "bs" else np.dtype(DTYPES[kind]).type(number)
            )
        key = kind, number.tobytes()
        if key not in self.constants:
            name = self.constants[key] = f"c{len(self.constants)}"
            self.names[name] = np.array([number])
        return self.constants[key]

    def assign(self, register: str, expression: str, kind: str) -> None:
        """The register becomes an expression of a type."""
        if register.startswith("%temp") or register == "_":
            return
        name = register[1:]
        self.flushed -= {name, f"{name}_z"}
        if kind == "f32" and "ftz" in self.op:
            self.flushed.add(name)
            expression = f"flushed({expression})" if self.op[0] in SMALL else expression
        self.lines.append(f"{name} = {_as(expression, kind, self.translated.kind_of(register))}")
        self.known.add(name)
        if len(self.translated.used[register]) > 1 and name not in self.written:
            self.written.append(name)

    def address(self, operand: str, wide: bool = True) -> tuple[str, str | None]:
        """(an expression for the address in [...], the variable's space if it names one)."""
        inner = operand.strip("[]").strip()
        base, _, offset = inner.partition("+")
        symbols = self.translated.symbols
        if base.startswith("%"):
            kind = self.translated.kind_of(base)
            name = self.local(base)
            return (f"({name} + {self.constant(int(offset), 'u' + kind[1:])})" if offset else name), None
        at = symbols[base][1] + int(offset or 0)
        return self.constant(at, "u32"), symbols[base][0]


def _as(expression: str, have: str, kind: str) -> str:
    """A number of a type as another type: the same bits, or fewer or more of them."""
    if have == kind or DTYPES[have] == DTYPES[kind]:
        return expression
    if have == "pred" or kind == "pred":
        raise PTXError(f"{have} as {kind}")
    expression = expression if expression.isidentifier() else f"({expression})"
    if SIZES[have[1:]] == SIZES[kind[1:]]:
        return f"{expression}.view({DTYPES[kind]!r})"
    if SIZES[have[1:]] > SIZES[kind[1:]]:  # the low bits
        return f"{expression}.astype({'u' + DTYPES[kind][1:]!r}).view({DTYPES[kind]!r})"
    sign = "i" if have.startswith("s") else "u"
    wide = DTYPES[kind][1:]
    return f"{expression}.view('{sign}{DTYPES[have][1:]}').astype('{sign}{wide}').view({DTYPES[kind]!r})"


def _compiled(translated: Translated, block: BasicBlock) -> Callable:
    w = _Writer(translated, block)
    for i in block.instructions:
        try:
            _write(w, i)
        except (PTXError, KeyError, IndexError, ValueError) as error:
            raise PTXError(f"{translated.kernel.name}: not modelled: {i}: {error}") from error
    predicate = w.local(block.last.predicate) if block.conditional else "None"
    for name in w.written:
        w.lines.append(f"R[{name!r}] = {name} if merge is None else merged(merge, {name}, R[{name!r}])")
    body = "\n    ".join([*w.lines, f"return {predicate}"])
    names = w.names
    exec(
        compile(f"def run(R, M, merge, act):\n    {body}", f"<{translated.kernel.name} {block.number}>", "exec"), names
    )
    return names["run"]


def _parts(operand: str) -> list[str]:
    """The registers of {a, b, ...}, or the one that stands alone."""
    return [o.strip() for o in operand.strip("{}").split(",")]


def _write(w: _Writer, i: Instruction) -> None:
    w.op, op, o = i.op, i.op[0], i.operands
    types = [t for t in i.op[1:] if t in DTYPES]
    kind = types[-1] if types else ""
    rounding = next((t for t in i.op if t in ROUNDINGS), "")
    if op == "ld" and "param" in i.op:
        at, _ = w.address(o[1])
        for j, register in enumerate(_parts(o[0])):
            w.assign(register, f"M.parameter_at({at}, {j}, {DTYPES[kind]!r}, act)", kind)
    elif op == "membar":  # memory has one order here
        pass
    elif op in ("ld", "st"):
        _memory(w, i, kind)
    elif op == "mov":
        _move(w, o, kind)
    elif op == "cvta":
        x = w.value(o[1], "u64")
        space = next(t for t in i.op if t in ("global", "shared", "local"))
        sign, start = "-" if "to" in i.op else "+", {"global": 0, "shared": SHARED, "local": LOCAL}[space]
        w.assign(o[0], f"{x} {sign} {w.constant(start, 'u64')}" if start else x, "u64")
    elif op == "cvt":
        _convert(w, i, types, rounding)
    elif op in BINARY and rounding != "rz":
        a, b = (w.value(x, kind) for x in o[1:])
        w.assign(o[0], f"{a} {BINARY[op]} {b}", kind)
    elif op == "add":
        w.assign(o[0], f"added_towards_zero({w.value(o[1], kind)}, {w.value(o[2], kind)})", kind)
    elif op in ("mul", "mad"):
        _multiply(w, i, kind)
    elif op == "fma":
        a, b, c = (w.value(x, kind) for x in o[1:])
        w.assign(o[0], f"fused({a}, {b}, {c}, {rounding!r})" if kind == "f32" else f"{a} * {b} + {c}", kind)
    elif op == "div" and kind[0] == "f":
        w.assign(o[0], f"{w.value(o[1], kind)} / {w.value(o[2], kind)}", kind)
    elif op in ("div", "rem"):
        w.assign(
            o[0], f"{'divided' if op == 'div' else 'remainder'}({w.value(o[1], kind)}, {w.value(o[2], kind)})", kind
        )
    elif op in ("min", "max"):
        function = f"np.f{op}" if kind[0] == "f" else f"np.{op}imum"
        w.assign(o[0], f"{function}({w.value(o[1], kind)}, {w.value(o[2], kind)})", kind)
    elif op == "neg":
        w.assign(o[0], f"-{w.value(o[1], kind)}", kind)
    elif op == "abs":
        w.assign(o[0], f"np.abs({w.value(o[1], kind)})", kind)
    elif op == "not":
        w.assign(o[0], f"~{w.value(o[1], kind)}", kind)
    elif op == "copysign":
        w.assign(o[0], f"np.copysign({w.value(o[2], kind)}, {w.value(o[1], kind)})", kind)
    elif op in ("rcp", "sqrt", "ex2", "lg2", "sin", "cos", "rsqrt"):
        _function(w, i, kind)
    elif op in ("shl", "shr"):
        a, b = w.value(o[1], kind), w.value(o[2], "u32")
        if o[2].isdecimal() and int(o[2]) < 8 * SIZES[kind[1:]]:
            b = w.constant(o[2], kind)
            w.assign(o[0], f"{a} {'<<' if op == 'shl' else '>>'} {b}", kind)
        else:
            w.assign(o[0], f"shifted({op!r}, {a}, {b})", kind)
    elif op == "bfi":
        w.assign(
            o[0],
            f"inserted({w.value(o[1], kind)}, {w.value(o[2], kind)}, {w.value(o[3], 'u32')}, {w.value(o[4], 'u32')})",
            kind,
        )
    elif op == "prmt":
        w.assign(o[0], f"permuted({', '.join(w.value(x, 'b32') for x in o[1:])})", "b32")
    elif op == "setp":
        w.assign(o[0], f"compared({i.op[1]!r}, {w.value(o[1], kind)}, {w.value(o[2], kind)})", "pred")
    elif op == "selp":
        w.assign(o[0], f"np.where({w.value(o[3], 'pred')}, {w.value(o[1], kind)}, {w.value(o[2], kind)})", kind)
    elif op == "shfl":
        d, p = (*o[0].split("|"), "_")[:2]
        a, b, c, mask = (w.value(x, "b32") for x in o[1:])
        w.lines.append(f"shuffled = M.shuffle({i.op[2]!r}, {a}, {b}, {c}, {mask}, act)")
        w.assign(d, "shuffled[0]", "b32")
        w.assign(p, "shuffled[1]", "pred")
    elif i.op[:2] == ("bar", "warp"):
        w.lines.append("M.warp_barrier(act)")
    elif op == "ldmatrix":
        a, _ = w.address(o[1])
        w.lines.append(f"found = M.ldmatrix({a}, {'trans' in i.op}, act)")
        for j, register in enumerate(_parts(o[0])):
            w.assign(register, f"found[{j}]", "b32")
    elif op == "mma":
        d, a, b, c = (_parts(x) for x in o)
        lists = [f"[{', '.join(w.value(x, t) for x in part)}]" for part, t in ((a, "b32"), (b, "b32"), (c, "f32"))]
        w.lines.append(f"found = M.mma({', '.join(lists)}, act)")
        for j, register in enumerate(d):
            w.assign(register, f"found[{j}]", "f32")
    elif op == "cp":
        _copy_async(w, i)
    elif op == "atom":
        space = next((t for t in i.op if t in ("global", "shared")), "generic")
        a, _ = w.address(o[1])
        how = next(t for t in i.op if t in ("add", "min", "max"))
        w.assign(o[0], f"M.atomic({space!r}, {how!r}, {a}, {w.value(o[2], kind)}, act)", kind)
    else:
        raise PTXError("unknown")


def _memory(w: _Writer, i: Instruction, kind: str) -> None:
    space = next((t for t in i.op if t in ("global", "shared", "local")), "generic")
    size, store = SIZES[kind[1:]], i.op[0] == "st"
    target, registers = (i.operands[0], i.operands[1]) if store else (i.operands[1], i.operands[0])
    inner = target.strip("[]").partition("+")
    if inner[0] in w.translated.constants:
        w.assign(registers, f"M.constant_at({inner[0]!r}, {int(inner[2] or 0)}, {DTYPES[kind]!r})", kind)
        return
    a, named = w.address(target)
    if named is None and space in ("global", "generic") and w.translated.kind_of(inner[0]) != "b64":
        raise PTXError("an address of 32 bits")
    registers = _parts(registers)
    if store:
        values = ", ".join(f"{w.value(r, kind)}.view('u{size}')" for r in registers)
        w.lines.append(f"M.store({space!r}, {a}, [{values}], {size}, act)")
        return
    w.lines.append(f"found = M.load({space!r}, {a}, {size}, {len(registers)}, act)")
    for j, register in enumerate(registers):
        w.assign(register, f"found[{j}].view({DTYPES[kind]!r})", kind)


def _move(w: _Writer, o: list[str], kind: str) -> None:
    if o[0].startswith("{"):  # apart
        parts = _parts(o[0])
        bits = 8 * SIZES[kind[1:]] // len(parts)
        x = w.value(o[1], f"u{kind[1:]}")
        for j, register in enumerate(parts):
            shift = w.constant(j * bits, f"u{kind[1:]}")
            w.assign(register, f"({x} >> {shift}).astype('u{bits // 8}')", f"u{bits}")
    elif o[1].startswith("{"):  # together
        parts = _parts(o[1])
        bits = 8 * SIZES[kind[1:]] // len(parts)
        wide = f"u{SIZES[kind[1:]]}"
        terms = [
            f"({w.value(r, f'u{bits}')}.astype({wide!r}) << {w.constant(j * bits, f'u{kind[1:]}')})"
            for j, r in enumerate(parts)
        ]
        w.assign(o[0], " | ".join(terms), f"u{kind[1:]}")
    else:
        w.assign(o[0], w.value(o[1], kind), kind)


def _convert(w: _Writer, i: Instruction, types: list[str], rounding: str) -> None:
    d, o = i.operands
    if i.op[-2:] == ("f32", "f16"):
        w.assign(d, f"{w.value(o, 'b16')}.view('f2').astype('f4')", "f32")
        return
    if i.op[-2:] == ("f16", "f32") and rounding == "rn":
        w.assign(d, f"{w.value(o, 'f32')}.astype('f2').view('u2')", "b16")
        return
    to, source = types
    x = w.value(o, source)
    if "sat" in i.op and to == source == "f32":
        w.assign(d, f"saturated({x})", to)
    elif to == source and rounding.endswith("i"):
        w.assign(d, f"np.{ {'rni': 'rint', 'rzi': 'trunc', 'rmi': 'floor', 'rpi': 'ceil'}[rounding] }({x})", to)
    elif to[0] == "f" and to != source and rounding in ("", "rn"):
        w.assign(d, f"{x}.astype({DTYPES[to]!r})", to)
    elif source[0] == "f" and to[0] != "f":
        w.assign(d, f"to_integer({x}, np.{np.dtype(DTYPES[to]).name}, {rounding!r})", to)
    elif source[0] != "f" and to[0] != "f":  # widened by the sign of the source, or cut off
        w.assign(d, f"{x}.astype({DTYPES[to]!r})", to)
    else:
        raise PTXError("unknown")


def _multiply(w: _Writer, i: Instruction, kind: str) -> None:
    o = i.operands
    if "wide" in i.op:
        to = WIDER[kind]
        a, b = (f"{w.value(x, kind)}.astype({DTYPES[to]!r})" for x in o[1:3])
        product = f"{a} * {b}"
    elif "hi" in i.op:
        to, product = kind, f"high({w.value(o[1], kind)}, {w.value(o[2], kind)})"
    else:
        to, product = kind, f"{w.value(o[1], kind)} * {w.value(o[2], kind)}"
    w.assign(o[0], f"{product} + {w.value(o[3], to)}" if i.op[0] == "mad" else product, to)


def _function(w: _Writer, i: Instruction, kind: str) -> None:
    x = w.value(i.operands[1], kind)
    exact = {
        "rcp": f"{w.constant('0f3F800000' if kind == 'f32' else '0d3FF0000000000000', kind)} / {x}",
        "sqrt": f"np.sqrt({x})",
    }
    if "rn" in i.op:
        w.assign(i.operands[0], exact[i.op[0]], kind)
        return
    functions = {
        "rcp": "np.reciprocal",
        "sqrt": "np.sqrt",
        "ex2": "np.exp2",
        "lg2": "np.log2",
        "sin": "np.sin",
        "cos": "np.cos",
    }
    w.assign(i.operands[0], f"approximate({functions[i.op[0]]}, {x})", kind)


def _copy_async(w: _Writer, i: Instruction) -> None:
    if "commit_group" in i.op:
        w.lines.append("M.commit(act)")
    elif "wait_group" in i.op:
        w.lines.append(f"M.wait_group({int(i.operands[0])}, act)")
    else:
        to, source, nbytes, *valid = i.operands
        given = w.value(valid[0], "u32") if valid else w.constant(nbytes, "u32")
        w.lines.append(f"M.copy_async({w.address(to)[0]}, {w.address(source)[0]}, {int(nbytes)}, {given}, act)")
