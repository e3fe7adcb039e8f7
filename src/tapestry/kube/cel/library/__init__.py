"""CEL function library. Each module registers its functions on import."""

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
