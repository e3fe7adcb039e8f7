"""How Kubernetes merges what is patched of a pod here."""

from tapestry.kube.objects import Object
from tapestry.kube.resources import PODS, Resource
from tapestry.kube.strategic import PatchSchema, PatchSchemas

CONDITIONS: Object = {
    "items": {"type": "object"},
    "x-kubernetes-patch-strategy": "merge",
    "x-kubernetes-patch-merge-key": "type",
}
STATUS: Object = {"type": "object", "properties": {"conditions": CONDITIONS}}
POD: Object = {"type": "object", "properties": {"metadata": {"type": "object"}, "status": STATUS}}
SCHEMAS: dict[Resource, PatchSchema] = {PODS: PatchSchemas({"Pod": POD}).of("Pod")}
