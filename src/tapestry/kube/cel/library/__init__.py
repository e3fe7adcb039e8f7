"""The functions that expressions can call: each module declares its own into the table when it is imported."""

from tapestry.kube.cel.functions import GLOBALS, MEMBERS
from tapestry.kube.cel.library import (
    amounts,
    authorization,
    conversions,
    lists,
    moments,
    network,
    operators,
    patterns,
    texts,
)

__all__ = [
    "GLOBALS",
    "MEMBERS",
    "amounts",
    "authorization",
    "conversions",
    "lists",
    "moments",
    "network",
    "operators",
    "patterns",
    "texts",
]
