"""Under which key etcd has an object: the keys are kube-apiserver's, so either can take over from the other.

/registry/pods/default/web                        a built-in kind, by its plural alone
/registry/services/specs/default/web              ... or by what it was called when keys were chosen
/registry/example.com/widgets/default/red         a custom resource, by its group as well
/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com
"""

from collections.abc import Iterable

from tapestry.apiserver.storage.log import Key

LEGACY_NAMES = {
    "replicationcontrollers": "controllers",
    "endpoints": "services/endpoints",
    "nodes": "minions",
    "services": "services/specs",
    "ingresses.networking.k8s.io": "ingress",
}
GROUPS_IN_KEYS = ("apiextensions.k8s.io", "apiregistration.k8s.io")
"""Groups of built-in kinds that have servers of their own, whose keys are like those of custom resources."""


class KeyLayout:
    """Keys below `prefix`; `built_in` are the names of resources that are not custom: `pods`, `deployments.apps`."""

    def __init__(self, prefix: str, built_in: Iterable[str]) -> None:
        self.prefix = f"/{prefix.strip('/')}/"
        self._paths = {name: resource_path(name) for name in built_in}
        self._names = {where: name for name, where in self._paths.items()}

    @property
    def range_end(self) -> bytes:
        """The first key after all that begin with the prefix."""
        return f"{self.prefix[:-1]}0".encode()  # "0" comes after "/"

    def path(self, key: Key) -> bytes:
        where = self._paths.get(key.resource) or grouped_path(key.resource)
        at = f"{key.namespace}/{key.name}" if key.namespace else key.name
        return f"{self.prefix}{where}/{at}".encode()

    def key(self, path: bytes) -> Key | None:
        """Which object is there; None is none of ours: kube-apiserver keeps its own notes among the objects."""
        first, *rest = path.decode("utf-8", "replace").removeprefix(self.prefix).split("/")
        name = self._names.get(first)
        if name is None and rest:
            second, *rest = rest
            name = self._names.get(f"{first}/{second}") or (f"{second}.{first}" if "." in first else None)
        if name is None or len(rest) not in (1, 2):
            return None
        namespace, its_name = rest if len(rest) == 2 else ("", rest[0])
        return Key(name, namespace, its_name)


def resource_path(name: str) -> str:
    if name in LEGACY_NAMES:
        return LEGACY_NAMES[name]
    plural, _, group = name.partition(".")
    return grouped_path(name) if group in GROUPS_IN_KEYS else plural


def grouped_path(name: str) -> str:
    plural, _, group = name.partition(".")
    return f"{group}/{plural}"
