"""Placement: the host cluster with the fewest tenants among those that can take one."""

from typing import Any

import pytest

from tapestry.kube.objects import Object
from tapestry.vclusters.placement import NoHostCapacity, choose_host


def host(name: str, tenants: int = 0, reachable: str = "True", **status: Any) -> Object:
    conditions = [{"type": "Reachable", "status": reachable}]
    return {"metadata": {"name": name}, "status": {"conditions": conditions, "tenants": tenants, **status}}


def test_fewest_tenants_win_then_the_name() -> None:
    assert choose_host("", [host("b", 2), host("c", 1), host("a", 1)], ()) == "a"


def test_requested_host_wins() -> None:
    assert choose_host("b", [host("a"), host("b", 9)], ()) == "b"


def test_no_hosts_at_all_are_no_error() -> None:
    assert choose_host("", [], ()) == ""


def test_only_hosts_of_the_project_are_used() -> None:
    assert choose_host("", [host("a"), host("b", 5)], ["b"]) == "b"


REJECTED = [
    ("", [host("a", reachable="False"), host("b", openNodes=0)], (), "a is not reachable; b has no open nodes"),
    ("", [host("a", nodes=0)], (), "a has no open nodes"),
    ("x", [host("a")], (), "there is no host cluster x for this project"),
    ("a", [host("a")], ["b"], "there is no host cluster a for this project"),
    ("a", [{**host("a"), "metadata": {"name": "a", "deletionTimestamp": "t"}}], (), "a is being deleted"),
    ("", [host("a")], ["b"], "the host clusters of the project do not exist"),
]


@pytest.mark.parametrize(("requested", "hosts", "allowed", "message"), REJECTED)
def test_rejection_says_why(requested: str, hosts: list[Object], allowed: list[str], message: str) -> None:
    with pytest.raises(NoHostCapacity, match=message):
        choose_host(requested, hosts, allowed)
