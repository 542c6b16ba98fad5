"""Functions, layers and constructors that are made when a module runs: the reference shows what they are then."""

import inspect
import re
from importlib import import_module
from types import FunctionType
from typing import Any

import griffe


class Rows(griffe.Extension):
    """Adds to an object the signature that its text does not have."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """A function or a class that is the row of a table; its docstring is in the row, too."""
        thing = made(attr) if isinstance(attr.value, griffe.ExprCall) else None
        if isinstance(thing, (FunctionType, type)) and thing.__module__.startswith("tinymp."):
            attr.docstring = griffe.Docstring(inspect.getdoc(thing) or "", parent=attr)
            attr.extra["rows"]["signature"] = signature(attr.name, thing)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """A class whose constructor is made by a call."""
        if isinstance(cls.members.get("__init__"), griffe.Attribute):
            cls.extra["rows"]["signature"] = signature(cls.name, made(cls))


def made(of: griffe.Object) -> Any:
    """The object of a module, when it has run."""
    return getattr(import_module(of.parent.path), of.name, None) if of.parent and of.parent.is_module else None


def signature(name: str, thing: Any) -> str:
    """Its signature, in one line of at most 80 characters or a line for each argument."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing)))
    if len(name + text) <= 80:
        return name + text
    end = text.rindex(")")
    arguments = re.split(r", (?![^\[(]*[\])])", text[1:end])  # not at the commas within brackets
    return f"{name}(\n    " + ",\n    ".join(arguments) + f"\n{text[end:]}"
