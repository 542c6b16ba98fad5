"""Modules, parameters, layers, losses as modules, and initialisers."""

from typing import TYPE_CHECKING

from ..arguments import name_all as _name_all
from ..parameter import Parameter
from . import containers, functions, init, layers, norm, recurrent
from .containers import *
from .functions import *
from .layers import *
from .module import Module
from .norm import *
from .recurrent import *

__all__ = ["Module", "Parameter", "init", *containers.__all__, *functions.__all__, *layers.__all__]
__all__ += [*norm.__all__, *recurrent.__all__]  # and those that are in more/, by the table of tinymp/__init__.py

_name_all(globals())

if TYPE_CHECKING:
    from .more.attention import *
    from .more.average import *
    from .more.containers import *
    from .more.functions import *
    from .more.group_norm import *
    from .more.layers import *
    from .more.recurrent import *
    from .more.reparametrised import *
    from .more.transformer import *
    from .more.utils import *
