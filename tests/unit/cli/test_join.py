"""Options of `tapestry join`."""

import pytest

from tapestry.cli.join import join, safeguards_from_options
from tapestry.manager.safeguards import Safeguards


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], Safeguards()),
        (["--pod-security", "restricted"], Safeguards(pod_security="restricted")),
        (
            ["--max-cpu", "8", "--max-memory", "16Gi", "--max-pods", "none"],
            Safeguards(max_cpu="8", max_memory="16Gi", max_pods="none"),
        ),
        (["--network-policy", "none"], Safeguards(network_policy=False)),
        (["--network-policy=isolate"], Safeguards(network_policy=True)),
        (["--ingress-from", "a", "--ingress-from", "b"], Safeguards(ingress_from=("a", "b"))),
        (["--trust-volumes"], Safeguards(trust_volumes=True)),
    ],
)
def test_options_select_safeguards(options: list[str], expected: Safeguards) -> None:
    context = join.make_context("join", ["east", "--cluster-kubeconfig", __file__, *options])
    assert safeguards_from_options(context.params) == expected
    assert context.params["mount_namespace"] == ""
