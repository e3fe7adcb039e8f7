"""DefaultTolerationSeconds admission."""

import pytest

from tapestry.apiserver.admission.default_toleration_seconds import with_default_tolerations
from tapestry.kube.objects import Object

NOT_READY, UNREACHABLE = (
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("not-ready", "unreachable")
)
EVERYTHING = {"operator": "Exists"}
OTHER_EFFECT = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}
OWN_SECONDS = {**NOT_READY, "tolerationSeconds": 5}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], [NOT_READY, UNREACHABLE]),
        ([EVERYTHING], []),
        ([OTHER_EFFECT], [NOT_READY, UNREACHABLE]),
        ([OWN_SECONDS], [UNREACHABLE]),
    ],
)
def test_missing_tolerations_are_added(given: list[Object], added: list[Object]) -> None:
    assert with_default_tolerations({"tolerations": given}) == {"tolerations": [*given, *added]}
