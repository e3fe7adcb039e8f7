"""Requests for serving certificates: what a syncer requests is what the manager accepts, and nothing else."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from tapestry.apis.serving_certificates import request_problem, service_names, serving_subject, signing_request
from tapestry.apiserver.access.certificates import alternative_name, subject_name
from tapestry.apiserver.core.certificate_requests import parse_request
from tapestry.controlplane.signers import KUBELET_SERVING, rule_violation
from tapestry.kube.objects import Object

KEY = ec.generate_private_key(ec.SECP256R1())
SYNCER = "tapestry-syncer-east"
NAMES = frozenset({"10.96.0.7", "fd00::7", f"{SYNCER}.tapestry-system.svc"})


def new_service(**spec: Any) -> Object:
    return {"metadata": {"name": SYNCER, "namespace": "tapestry-system"}, "spec": spec}


def new_request() -> Object:
    return signing_request("r", SYNCER, NAMES, KEY)


def csr(
    names: frozenset[str] = NAMES,
    subject: x509.Name | None = None,
    *extensions: x509.ExtensionType,
    others: tuple[x509.GeneralName, ...] = (),
) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject or serving_subject(SYNCER))
    alternatives = [*(alternative_name(each) for each in sorted(names)), *others]
    for extension in (x509.SubjectAlternativeName(alternatives), *extensions):
        builder = builder.add_extension(extension, critical=False)
    return base64.b64encode(builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM)).decode()


def test_syncer_requests_what_is_accepted_and_signed() -> None:
    request = new_request()
    assert request_problem(request, SYNCER, NAMES) is None
    spec = request["spec"]
    assert rule_violation(KUBELET_SERVING, parse_request(spec["request"]), spec["usages"]) == ""


def test_service_has_a_name_and_addresses() -> None:
    assert service_names(new_service(clusterIP="10.96.0.7", clusterIPs=["10.96.0.7", "fd00::7"])) == NAMES
    assert service_names(new_service(clusterIP="10.96.0.7")) == NAMES - {"fd00::7"}
    assert service_names(new_service(clusterIP="None", clusterIPs=["None"])) == {f"{SYNCER}.tapestry-system.svc"}


HOSTILE: dict[str, Callable[[Object], Object]] = {
    "further name": lambda spec: {**spec, "request": csr(NAMES | {"kubernetes.default.svc"})},
    "missing name": lambda spec: {**spec, "request": csr(NAMES - {"10.96.0.7"})},
    "wildcard": lambda spec: {**spec, "request": csr(frozenset({"*.tapestry-system.svc"}))},
    "URI": lambda spec: {**spec, "request": csr(others=(x509.UniformResourceIdentifier("spiffe://a/b"),))},
    "node": lambda spec: {**spec, "request": csr(NAMES, subject_name("system:node:n1", ["system:nodes"]))},
    "masters": lambda spec: {**spec, "request": csr(NAMES, subject_name(f"system:node:{SYNCER}", ["system:masters"]))},
    "both groups": lambda spec: {
        **spec,
        "request": csr(NAMES, subject_name(f"system:node:{SYNCER}", ["system:nodes", "system:masters"])),
    },
    "CA": lambda spec: {**spec, "request": csr(NAMES, None, x509.BasicConstraints(ca=True, path_length=None))},
    "client auth": lambda spec: {**spec, "usages": [*spec["usages"], "client auth"]},
    "no usage": lambda spec: {**spec, "usages": []},
    "client signer": lambda spec: {**spec, "signerName": "kubernetes.io/kube-apiserver-client"},
    "no request": lambda spec: {**spec, "request": "bm90IGEgcmVxdWVzdA=="},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_other_requests_are_rejected(change: Callable[[Object], Object]) -> None:
    request = {**new_request(), "spec": change(new_request()["spec"])}
    assert request_problem(request, SYNCER, NAMES)


def test_nothing_is_accepted_for_an_unknown_address() -> None:
    assert request_problem(new_request(), SYNCER, frozenset())
