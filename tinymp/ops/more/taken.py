"""Arguments of functions that are made of several ops, as the policy in use has them."""

from __future__ import annotations

from typing import Any

from ...precision import policy_in_use


def taken(op: str, *args: Any) -> tuple:
    """args as the function of this name takes them under the policy in use: see `Policy.arguments`."""
    rule = policy_in_use.get().arguments
    return args if rule is None else tuple(rule(op, args, {}))
