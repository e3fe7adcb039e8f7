"""Approval of the certificates that syncers request for the kubelet API of their virtual nodes.

A request is approved only if it comes from the account of a binding's syncer, and if its names are exactly those of the
binding's kubelet API: of the Service of the syncer, or without a Service, of the pod that made the request.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from tapestry.apis.names import syncer_name
from tapestry.apis.permissions import SERVING_SIGNER
from tapestry.apis.serving_certificates import POD_NAME, POD_UID, request_problem, service_names
from tapestry.controller import Informer, Manager, Result
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, uid_of, value_at
from tapestry.kube.resources import PODS, SIGNING_REQUESTS
from tapestry.kube.times import parse_time, timestamp
from tapestry.manager.syncers import binding_uid_of
from tapestry.process.logs import logger

log = logger(__name__)

RECHECK_SECONDS = 10.0
"""Interval of checks of a request that is not approved: a new Service or pod may not have its address yet."""
REPORT_AFTER = timedelta(seconds=30)
"""Age at which a request that is not approved is reported."""
NOT_APPROVED = "CertificateNotApproved"


@dataclass(frozen=True)
class ServingCertificateApprover:
    """Approve requests; keyed by their names."""

    manager: Manager
    requests: Informer
    bindings: Informer
    services: Informer | None
    """Services of syncers, if they have any."""
    namespace: str
    """Namespace of the syncers."""

    async def reconcile(self, name: str) -> Result | None:
        request = self.requests.store.get(name)
        if request is None or is_deleting(request) or value_at(request, "status", "conditions"):
            return None
        binding = self.binding_of(request)
        if binding is None:
            return None
        syncer = syncer_name(binding["spec"]["clusterID"])
        problem = request_problem(request, syncer, await self.names(request, binding, syncer))
        if problem is None:
            await self.approve(request)
            return None
        if self.manager.now() - parse_time(request["metadata"]["creationTimestamp"]) >= REPORT_AFTER:
            message = f"CertificateSigningRequest {name} of the syncer is not approved: {problem}"
            self.manager.events.warning(binding, NOT_APPROVED, message)
        return Result(requeue_after=RECHECK_SECONDS)

    def binding_of(self, request: Object) -> Object | None:
        """Return the binding whose syncer made the request, as the API server has authenticated it."""
        prefix = account_prefix(self.namespace)
        user = str(value_at(request, "spec", "username", default=""))
        found = self.bindings.store.by("clusterID", user.removeprefix(prefix)) if user.startswith(prefix) else ()
        return next(iter(found), None)

    async def names(self, request: Object, binding: Object, syncer: str) -> frozenset[str]:
        """Return the names and addresses of the binding's kubelet API."""
        service = self.services.store.get(f"{self.namespace}/{syncer}") if self.services is not None else None
        if service is not None and uid_of(binding) in binding_uid_of(service):
            return service_names(service)
        return await self.pod_addresses(claim_of(request, POD_NAME), claim_of(request, POD_UID))

    async def pod_addresses(self, name: str, uid: str) -> frozenset[str]:
        pods = await self.manager.client.list(PODS, self.namespace, fields=f"metadata.name={name}") if name else []
        addresses = (value_at(each, "status", "podIP", default="") for each in pods if uid_of(each) == uid)
        return frozenset(each for each in addresses if each)

    async def approve(self, request: Object) -> None:
        condition = {
            "type": "Approved",
            "status": "True",
            "reason": "TapestryApproved",
            "message": "approved for the kubelet API of a binding's virtual nodes",
            "lastUpdateTime": timestamp(self.manager.now()),
        }
        patch = {"status": {"conditions": [condition]}}
        try:
            await self.manager.client.patch(SIGNING_REQUESTS, request, patch, subresource="approval")
        except NotFound:
            return
        log.info("serving certificate approved", request=name_of(request), user=value_at(request, "spec", "username"))


def account_prefix(namespace: str) -> str:
    """Return the user names of the syncers in a namespace, up to the clusterID."""
    return f"system:serviceaccount:{namespace}:{syncer_name('')}"


def claim_of(request: Object, claim: str) -> str:
    """Return a claim of the token with which a request was made, or an empty text."""
    values: Iterable[str] = value_at(request, "spec", "extra", claim, default=())
    return next(iter(values), "")


def install_approver(manager: Manager, bindings: Informer, services: Informer | None, namespace: str) -> None:
    """Install the controller.  Without permission to list requests, everything else works."""
    prefix = account_prefix(namespace)
    requests = manager.add_optional_informer(
        Informer(
            manager.reads,
            SIGNING_REQUESTS,
            fields=f"spec.signerName={SERVING_SIGNER}",
            keep=lambda request: str(value_at(request, "spec", "username", default="")).startswith(prefix),
        )
    )
    approver = ServingCertificateApprover(manager, requests, bindings, services, namespace)
    manager.controller("serving-certificates", approver.reconcile, workers=1).watch(requests)
