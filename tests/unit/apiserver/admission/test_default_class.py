"""DefaultStorageClass and DefaultIngressClass admission."""

from typing import Any

from tapestry.kube.objects import Object

from ..conftest import ServerClient

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
INGRESSES = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
STORAGE = "/apis/storage.k8s.io/v1/storageclasses"
INGRESS_CLASSES = "/apis/networking.k8s.io/v1/ingressclasses"
DEFAULT = "is-default-class"


def claim_body(name: str, **spec: Any) -> Object:
    resources = {"requests": {"storage": "1Gi"}}
    return {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources, **spec}}


async def test_claim_gets_default_storage_class(call: ServerClient) -> None:
    assert "storageClassName" not in (await call.made(CLAIMS, claim_body("before")))["spec"]
    annotations = {f"storageclass.kubernetes.io/{DEFAULT}": "true"}
    await call.made(STORAGE, {"metadata": {"name": "slow"}, "provisioner": "x"})
    await call.made(STORAGE, {"metadata": {"name": "fast", "annotations": annotations}, "provisioner": "x"})
    assert (await call.made(CLAIMS, claim_body("after")))["spec"]["storageClassName"] == "fast"
    assert (await call.made(CLAIMS, claim_body("own", storageClassName="slow")))["spec"]["storageClassName"] == "slow"
    assert (await call.made(CLAIMS, claim_body("none", storageClassName="")))["spec"]["storageClassName"] == ""


async def test_ingress_gets_default_ingress_class(call: ServerClient) -> None:
    annotations = {f"ingressclass.kubernetes.io/{DEFAULT}": "true"}
    await call.made(
        INGRESS_CLASSES, {"metadata": {"name": "edge", "annotations": annotations}, "spec": {"controller": "x/y"}}
    )
    backend = {"service": {"name": "s", "port": {"number": 80}}}
    plain = {"metadata": {"name": "a"}, "spec": {"defaultBackend": backend}}
    assert (await call.made(INGRESSES, plain))["spec"]["ingressClassName"] == "edge"
    old = {"metadata": {"name": "b", "annotations": {"kubernetes.io/ingress.class": "old"}}, "spec": plain["spec"]}
    assert "ingressClassName" not in (await call.made(INGRESSES, old))["spec"]
