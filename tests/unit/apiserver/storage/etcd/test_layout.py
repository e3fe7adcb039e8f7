"""The layout of keys in etcd."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.core.store import Key
from tapestry.apiserver.storage.etcd.layout import KeyLayout

BUILT_IN = sorted({info.storage for info in published_api().resources})
LAYOUT = KeyLayout("/registry", BUILT_IN)
SEGMENTS = st.from_regex(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?", fullmatch=True)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (Key("pods", "default", "p"), "/registry/pods/default/p"),
        (Key("namespaces", "", "x"), "/registry/namespaces/x"),
        (Key("deployments.apps", "x", "d"), "/registry/deployments/x/d"),
        (Key("nodes", "", "n"), "/registry/minions/n"),
        (Key("services", "x", "s"), "/registry/services/specs/x/s"),
        (Key("endpoints", "x", "s"), "/registry/services/endpoints/x/s"),
        (Key("replicationcontrollers", "x", "r"), "/registry/controllers/x/r"),
        (Key("ingresses.networking.k8s.io", "x", "i"), "/registry/ingress/x/i"),
        (Key("leases.coordination.k8s.io", "x", "l"), "/registry/leases/x/l"),
        (
            Key("customresourcedefinitions.apiextensions.k8s.io", "", "widgets.example.com"),
            "/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com",
        ),
        (
            Key("apiservices.apiregistration.k8s.io", "", "v1.apps"),
            "/registry/apiregistration.k8s.io/apiservices/v1.apps",
        ),
        (Key("widgets.example.com", "x", "w"), "/registry/example.com/widgets/x/w"),
        (Key("clusterwidgets.example.com", "", "w"), "/registry/example.com/clusterwidgets/w"),
    ],
)
def test_keys_match_kube_apiserver(key: Key, path: str) -> None:
    assert LAYOUT.path(key) == path.encode()
    assert LAYOUT.key(path.encode()) == key


@given(st.sampled_from([*BUILT_IN, "widgets.example.com"]), st.just("") | SEGMENTS, SEGMENTS)
def test_key_round_trips_below_prefix(resource: str, namespace: str, name: str) -> None:
    key = Key(resource, namespace, name)
    path = LAYOUT.path(key)
    assert LAYOUT.key(path) == key
    assert LAYOUT.prefix.encode() < path < LAYOUT.range_end


def test_built_in_resources_have_distinct_paths() -> None:
    assert len({LAYOUT.path(Key(name, "x", "y")) for name in BUILT_IN}) == len(BUILT_IN)


@pytest.mark.parametrize(
    "path",
    [
        b"/registry/masterleases/10.0.0.1",
        b"/registry/ranges/serviceips",
        b"/registry/health",
        b"/registry/",
        b"/registry/pods",
        b"/registry/pods/a/b/c",
        b"/registry/example.com/widgets",
        b"/registry/pods/\xff\xfe/\x00/x",
    ],
)
def test_path_of_no_object_has_no_key(path: bytes) -> None:
    assert LAYOUT.key(path) is None


@pytest.mark.parametrize("prefix", ["registry", "/registry", "/registry/"])
def test_prefix_is_normalized(prefix: str) -> None:
    assert KeyLayout(prefix, BUILT_IN).prefix == "/registry/"


def test_server_without_etcd_does_not_load_grpc() -> None:
    code = "import sys, tapestry.cli.apiserver; sys.exit(bool({'grpc', 'google.protobuf'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
