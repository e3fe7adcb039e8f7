"""Placement of virtual clusters on host clusters."""

from collections.abc import Collection, Iterable

from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, is_deleting, name_of, value_at


class NoHostCapacity(Exception):
    """No host cluster can take the virtual cluster. The message says what is wrong with each."""


def choose_host(requested: str, hosts: Iterable[Object], allowed: Collection[str]) -> str:
    """Return the host cluster for a virtual cluster, or an empty name if there are no host clusters at all.

    It is the requested one, if any, else the one with the fewest tenants. `allowed` are those that the project may use;
    empty means all.
    """
    known = {name_of(each): each for each in hosts if not allowed or name_of(each) in allowed}
    if requested:
        known = {name: each for name, each in known.items() if name == requested}
        if not known:
            raise NoHostCapacity(f"there is no host cluster {requested} for this project")
    problems = {name: text for name, each in known.items() if (text := problem_of(each))}
    if candidates := [each for name, each in known.items() if name not in problems]:
        return name_of(min(candidates, key=lambda each: (tenants_of(each), name_of(each))))
    if problems or allowed:
        described = (f"{name} {text}" for name, text in problems.items())
        raise NoHostCapacity("; ".join(described) or "the host clusters of the project do not exist")
    return ""


def tenants_of(host: Object) -> int:
    count: int = value_at(host, "status", "tenants", default=0)
    return count


def problem_of(host: Object) -> str:
    """Return why a host cluster takes no virtual clusters; empty if it does."""
    if is_deleting(host):
        return "is being deleted"
    if not is_condition_true(host, "Reachable"):
        return "is not reachable"
    nodes = value_at(host, "status", "openNodes", default=value_at(host, "status", "nodes"))
    return "has no open nodes" if nodes == 0 else ""
