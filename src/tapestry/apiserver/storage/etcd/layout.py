"""Layout of keys in etcd, the same as kube-apiserver's, so that either can replace the other.

/registry/pods/default/web                        a built-in kind, by its plural
/registry/services/specs/default/web              a built-in kind with a legacy name
/registry/example.com/widgets/default/red         a custom resource, by group and plural
/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com
"""

from collections.abc import Iterable

from tapestry.apiserver.core.store import Key

LEGACY_NAMES = {
    "replicationcontrollers": "controllers",
    "endpoints": "services/endpoints",
    "nodes": "minions",
    "services": "services/specs",
    "ingresses.networking.k8s.io": "ingress",
}
GROUPS_IN_KEYS = ("apiextensions.k8s.io", "apiregistration.k8s.io")
"""Groups of built-in kinds whose keys include the group, because aggregated servers define them."""


class KeyLayout:
    """Keys below `prefix`. `built_in` lists the resources that are not custom, e.g. `pods` and `deployments.apps`."""

    def __init__(self, prefix: str, built_in: Iterable[str]) -> None:
        self.prefix = key_prefix(prefix)
        self._paths = {name: resource_path(name) for name in built_in}
        self._names = {path: name for name, path in self._paths.items()}

    @property
    def range_end(self) -> bytes:
        return range_end(self.prefix)

    def path(self, key: Key) -> bytes:
        resource = self._paths.get(key.resource) or grouped_path(key.resource)
        name = f"{key.namespace}/{key.name}" if key.namespace else key.name
        return f"{self.prefix}{resource}/{name}".encode()

    def key(self, path: bytes) -> Key | None:
        """The object that a path belongs to. None for other paths: kube-apiserver stores internal data there, too."""
        first, *rest = path.decode("utf-8", "replace").removeprefix(self.prefix).split("/")
        resource = self._names.get(first)
        if resource is None and rest:
            second, *rest = rest
            resource = self._names.get(f"{first}/{second}") or (f"{second}.{first}" if "." in first else None)
        if resource is None or len(rest) not in (1, 2):
            return None
        namespace, name = rest if len(rest) == 2 else ("", rest[0])
        return Key(resource, namespace, name)


def key_prefix(prefix: str) -> str:
    """Return a configured prefix as the beginning of keys."""
    return f"/{prefix.strip('/')}/"


def range_end(prefix: str) -> bytes:
    """Return the first key after all keys with a prefix that ends with a slash."""
    return f"{prefix[:-1]}0".encode()  # "0" follows "/" in ASCII


def resource_path(name: str) -> str:
    if name in LEGACY_NAMES:
        return LEGACY_NAMES[name]
    plural, _, group = name.partition(".")
    return grouped_path(name) if group in GROUPS_IN_KEYS else plural


def grouped_path(name: str) -> str:
    plural, _, group = name.partition(".")
    return f"{group}/{plural}"
