"""The functions that expressions can call: each module declares its own into the table when it is imported."""

from tapestry.kube.cel.functions import GLOBALS, MEMBERS
from tapestry.kube.cel.library import (
    authorization,
    conversions,
    lists,
    network,
    operators,
    quantities,
    regex_functions,
    strings,
    timestamps,
)

__all__ = [
    "GLOBALS",
    "MEMBERS",
    "authorization",
    "conversions",
    "lists",
    "network",
    "operators",
    "quantities",
    "regex_functions",
    "strings",
    "timestamps",
]
