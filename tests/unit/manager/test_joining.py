"""Join and unjoin: created objects in both clusters, untouched objects, and errors."""

import asyncio
import base64
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, binding_of
from tapestry.apis.permissions import (
    JOINER,
    SYNCER_IN_PHYSICAL,
    SYNCER_STREAMS,
    SYNCER_VOLUMES,
    Placeholder,
    policy_rules,
    single_permissions,
    with_names,
)
from tapestry.apis.policies import POLICIES
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.credentials import Credentials, StaticAuthorization, bearer_header
from tapestry.client.strict_kubeconfig import strict_access
from tapestry.client.tls import ServerVerification
from tapestry.client.transport import Request, Response, Transport
from tapestry.controller.testing import InProcessApi, everything_allowed, run, running_clock, specimen
from tapestry.kube.errors import NotFound, TransportError
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, object_named, with_value
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from tapestry.manager.config import BindingsConfig
from tapestry.manager.installation import installation_objects
from tapestry.manager.join_steps import Cluster, JoinError, Step, StepResult
from tapestry.manager.joining import (
    PRIORITY_CLASSES,
    Plan,
    account_name,
    is_token_reusable,
    join,
    kubeconfig,
    policy_name,
)
from tapestry.manager.leftovers import leftovers_in
from tapestry.manager.offers import Offer, parse_percent, parse_window, parse_windows, validate_offer
from tapestry.manager.unjoining import unjoin
from tapestry.manager.validation import validated_spec

VIRTUAL = (CLUSTER_BINDINGS, CLUSTER_ROLE_BINDINGS, DEPLOYMENTS, NAMESPACES, NODES, PODS, SECRETS)
PHYSICAL = (
    *(NAMESPACES, NODES, PODS, SERVICES, SECRETS, CONFIGMAPS, PERSISTENT_VOLUME_CLAIMS),
    *(POLICIES, CRDS, PRIORITY_CLASSES, RESOURCE_QUOTAS, NETWORK_POLICIES),
    *(ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS),
    *(SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
)
MADE_BELOW = (
    *(NAMESPACES, PRIORITY_CLASSES, CRDS, POLICIES, RESOURCE_QUOTAS, NETWORK_POLICIES),
    *(ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS),
    *(SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
)
ACCESS = Access("https://east.example:6443", Credentials(StaticAuthorization(bearer_header("administrator"))))
MOUNT = "tapestry-leased"


@dataclass
class World:
    """A virtual cluster, and a physical one with a node."""

    virtual_api: InProcessApi
    physical_api: InProcessApi
    steps: list[Step] = field(default_factory=list)

    @property
    def virtual(self) -> Cluster:
        return Cluster("virtual", Client(self.virtual_api.connect()), self.steps.append)

    @property
    def physical(self) -> Cluster:
        return Cluster("physical", Client(self.physical_api.connect()), self.steps.append)

    async def join(self, name: str = "east", **plan: Any) -> list[Step]:
        """Join and return the steps, without those of permissions."""
        self.steps.clear()
        given = Plan(name, **{"cluster_id": name, **plan})
        clusters = self.virtual, self.physical
        connect = lambda _: self.physical_api.connect()  # noqa: E731
        await join(given, *clusters, ACCESS, connect=connect, now=running_clock().now())
        return [step for step in self.steps if step.result is not StepResult.GRANTED]

    async def unjoin(self, name: str = "east", **how: Any) -> list[Step]:
        self.steps.clear()
        await unjoin(name, self.virtual, self.physical, **how)
        return list(self.steps)

    async def physical_objects(self) -> list[str]:
        """Return the physical objects of the kinds that join creates, as `Kind name`, without terminating ones."""
        client = self.physical.client
        found = [
            f"{kind.kind} {name_of(each)}"
            for kind in MADE_BELOW
            for each in await client.list(kind)
            if not is_deleting(each)  # no controller here finishes the deletion of namespaces and CRDs
        ]
        return [each for each in found if each != "Namespace kube-system"]

    async def uid(self) -> str:
        return await self.virtual.identity()

    async def policy(self, name: str = "east") -> Object:
        return await self.physical.client.get(POLICIES, policy_name(await self.uid(), name))


Scenario = Callable[[World], Coroutine[Any, Any, None]]


def in_a_world(scenario: Scenario, review: Callable[[Object], Object] = everything_allowed) -> None:
    async def main() -> None:
        now = running_clock().now
        await scenario(await new_world(InProcessApi(VIRTUAL, now=now), InProcessApi(PHYSICAL, now=now, review=review)))

    run(main())


async def new_world(virtual: InProcessApi, physical: InProcessApi) -> World:
    world = World(virtual, physical)
    for cluster in (world.virtual, world.physical):
        try:
            await cluster.identity()
        except NotFound:
            await cluster.client.create(NAMESPACES, object_named("kube-system"))
    await world.physical.client.create(
        NODES, {**object_named("n1"), "status": {"allocatable": {"cpu": "4", "nvidia.com/gpu": "2"}}}
    )
    return world


def kinds_with_result(steps: list[Step], *marks: StepResult) -> list[str]:
    return [step.subject.split()[0] for step in steps if step.result in marks]


# -- join


def test_second_join_creates_nothing() -> None:
    async def scenario(world: World) -> None:
        first = await world.join()
        made = kinds_with_result(first, StepResult.CREATED)
        assert made == [
            *("Namespace", "PriorityClass", "CustomResourceDefinition", "ResourceLeasingPolicy", "NetworkPolicy"),
            *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
            *("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
            *("Namespace", "Namespace", "Secret", "ClusterBinding"),
        ]
        mount = await world.physical.client.get(NAMESPACES, MOUNT)
        assert (
            labels_of(mount).items()
            >= {keys.MANAGED_BY: keys.TAPESTRY, keys.OWNER_POLICY: keys.OWNER_POLICY_REQUIRED}.items()
        )
        priority = await world.physical.client.get(PRIORITY_CLASSES, keys.PRIORITY_CLASS)
        assert (priority["value"], priority["preemptionPolicy"]) == (-10000, "Never")
        second = await world.join()
        assert kinds_with_result(second, StepResult.CREATED) == []
        assert kinds_with_result(second, StepResult.UPDATED) == ["Secret"]  # tokens of this server have no issue time

    in_a_world(scenario)


class RecordingTransport:
    """A transport that records its requests."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.requests: list[str] = []

    async def send(self, request: Request) -> Response:
        self.requests.append(str(request))
        return await self.inner.send(request)


def test_prepared_join_needs_only_the_rights_of_the_joiner() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        name = account_name(await world.uid(), "east")
        transport = RecordingTransport(world.physical_api.connect())
        physical = Cluster("physical", Client(transport), world.steps.append)  # type: ignore[arg-type]  no watches
        connect = lambda _: world.physical_api.connect()  # noqa: E731
        plan = Plan("east", "east", is_prepared=True)
        await join(plan, world.virtual, physical, ACCESS, connect=connect, now=running_clock().now())
        granted = single_permissions(
            with_names(JOINER, {Placeholder.MOUNT_NAMESPACE: MOUNT, Placeholder.SYNCER_ACCOUNT: name})
        )
        assert list(map(str, granted)) == [
            "get namespaces kube-system",
            f"get namespaces {MOUNT}",
            f"list serviceaccounts in {MOUNT}",
            f"create serviceaccounts/token {name} in {MOUNT}",
        ]
        assert set(transport.requests) == {
            "GET /api/v1/namespaces/kube-system",
            f"GET /api/v1/namespaces/{MOUNT}",
            f"GET /api/v1/namespaces/{MOUNT}/serviceaccounts",
            f"POST /api/v1/namespaces/{MOUNT}/serviceaccounts/{name}/token",
        }

    in_a_world(scenario)


def test_simulated_nodes_allow_their_annotations() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        assert not binding["spec"].get("allowedMetadata")
        await world.physical.client.patch(
            NODES, object_named("n1"), {"metadata": {"labels": {keys.SIMULATED_NODE: ""}}}
        )
        await world.virtual.client.patch(CLUSTER_BINDINGS, binding, {"spec": {"allowedMetadata": ["a.io/x"]}})
        for _ in range(2):
            await world.join()
            binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
            assert binding["spec"]["allowedMetadata"] == ["a.io/x", "simulated.tapestry.io/*"]

    in_a_world(scenario)


def test_account_has_exactly_the_permissions_of_the_table() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        client, name = world.physical.client, account_name(await world.uid(), "east")
        places = {
            Placeholder.MOUNT_NAMESPACE: MOUNT,
            Placeholder.SYNCER_ACCOUNT: name,
            Placeholder.SYNCER_ACCOUNT_NAMESPACE: MOUNT,
        }
        role, inside = await client.get(CLUSTER_ROLES, name), await client.get(ROLES, name, MOUNT)
        assert [*role["rules"], *inside["rules"]] == policy_rules(
            sorted(with_names((*SYNCER_IN_PHYSICAL, *SYNCER_STREAMS), places), key=lambda right: bool(right.namespace))
        )
        bound = await client.get(CLUSTER_ROLE_BINDINGS, name)
        assert bound["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": MOUNT}]

    in_a_world(scenario)


def test_volume_permissions_follow_allowed_drivers() -> None:
    async def scenario(world: World) -> None:
        async def granted() -> list[Object]:
            name = account_name(await world.uid(), "east")
            found = await client.get(CLUSTER_ROLES, name), await client.get(ROLES, name, MOUNT)
            return [rule for role in found for rule in role["rules"]]

        client = world.physical.client
        over_volumes = policy_rules(with_names(SYNCER_VOLUMES, {Placeholder.MOUNT_NAMESPACE: MOUNT}))
        await world.join()
        assert not [rule for rule in over_volumes if rule in await granted()]
        for drivers, wanted in ((["disk.example"], over_volumes), ([], [])):
            allowed = {"spec": {"allowedVolumes": {"drivers": drivers}}}
            await world.virtual.client.patch(CLUSTER_BINDINGS, object_named("east"), allowed)
            await world.join()
            assert [rule for rule in over_volumes if rule in await granted()] == wanted

    in_a_world(scenario)


def test_secret_contains_a_valid_kubeconfig() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        secret = await world.virtual.client.get(SECRETS, "east", keys.SYSTEM_NAMESPACE)
        access = strict_access(base64.b64decode(secret["data"]["kubeconfig"]))
        assert access.server == ACCESS.server
        [(_, authorization)] = await access.credentials.headers()
        assert authorization not in ("", bearer_header("administrator"))
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        assert binding["spec"] == {
            "clusterID": "east",
            "secretRef": {"name": "east", "namespace": keys.SYSTEM_NAMESPACE},
            "mountNamespace": MOUNT,
            "disableNodeDefaultTaint": True,
        }

    in_a_world(scenario)


async def install_manager(world: World, namespace: str) -> None:
    """Create the namespace and the ClusterRoleBinding of `tapestry manifests -n namespace`."""
    client = world.virtual.client
    await client.create(NAMESPACES, object_named(namespace))
    for each in installation_objects(namespace=namespace):
        if each["kind"] == CLUSTER_ROLE_BINDINGS.kind:
            await client.create(CLUSTER_ROLE_BINDINGS, each)


def test_secret_is_in_the_manager_namespace() -> None:
    async def scenario(world: World) -> None:
        await install_manager(world, "grid")
        await world.join()
        assert await world.virtual.client.find(SECRETS, "east", "grid") is not None
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        assert validated_spec(binding, [], BindingsConfig(namespace="grid").secret_namespaces)
        await world.unjoin(force=True)
        assert await world.virtual.client.find(SECRETS, "east", "grid") is None

    in_a_world(scenario)


def test_tenant_deployment_named_like_manager_gets_no_secret() -> None:
    async def scenario(world: World) -> None:
        client = world.virtual.client
        await client.create(NAMESPACES, object_named("tenant"))
        await client.create(
            DEPLOYMENTS, next(each for each in installation_objects(namespace="tenant") if each["kind"] == "Deployment")
        )
        await world.join()
        assert await client.find(SECRETS, "east", "tenant") is None

    in_a_world(scenario)


def test_secret_is_in_the_requested_namespace() -> None:
    async def scenario(world: World) -> None:
        await install_manager(world, "grid")
        await world.join(namespace="kubeconfigs")
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        assert binding["spec"]["secretRef"] == {"name": "east", "namespace": "kubeconfigs"}
        assert await world.virtual.client.find(SECRETS, "east", "kubeconfigs") is not None

    in_a_world(scenario)


def test_loopback_is_warned_and_link_local_rejected() -> None:
    async def scenario(world: World) -> None:
        async def join_at(server: str) -> None:
            access = replace(ACCESS, server=server)
            connect = lambda _: world.physical_api.connect()  # noqa: E731
            clusters = world.virtual, world.physical
            await join(Plan("east", "east"), *clusters, access, connect=connect, now=running_clock().now())

        with pytest.raises(JoinError, match="it is a link-local address"):
            await join_at("https://169.254.1.1:6443")
        assert await world.physical_objects() == []
        await join_at("https://127.0.0.1:6443")
        [warning] = [step for step in world.steps if step.result is StepResult.WARNING]
        assert "--allow-loopback" in warning.note
        assert await world.virtual.client.find(CLUSTER_BINDINGS, "east") is not None

    in_a_world(scenario)


def test_every_node_resource_gets_the_limit() -> None:
    async def scenario(world: World) -> None:
        await world.join(offer=Offer(percent=30))
        limits = {each["resource"]: each["percent"] for each in (await world.policy())["spec"]["resourceLimits"]}
        assert limits == dict.fromkeys(("cpu", "ephemeral-storage", "memory", "nvidia.com/gpu", "pods"), 30)

    in_a_world(scenario)


def test_options_not_in_the_offer_stay_unchanged() -> None:
    async def scenario(world: World) -> None:
        await world.join(offer=Offer(windows=parse_windows(["22:00-06:00 Mon"]), grace_seconds=60))
        await world.physical.client.patch(POLICIES, await world.policy(), {"spec": {"resourceLimits": []}})
        assert "ResourceLeasingPolicy" not in kinds_with_result(
            await world.join(), StepResult.UPDATED, StepResult.CREATED
        )
        await world.join(offer=Offer(force_reclaim=True))
        assert (await world.policy())["spec"] == {
            "cluster": "east",
            "timeWindows": [{"start": "22:00", "end": "06:00", "days": ["Mon"]}],
            "resourceLimits": [],
            "totalLimits": [],
            "forceReclaim": True,
            "gracefulReclaimPeriodSeconds": 60,
            "evictDuringGrace": False,
        }

    in_a_world(scenario)


def test_existing_owner_policy_gets_no_default_beside_it() -> None:
    async def scenario(world: World) -> None:
        policy = {
            **object_named("mine"),
            "spec": {"cluster": "east", "resourceLimits": [{"resource": "cpu", "percent": 1}]},
        }
        await world.physical.client.create(POLICIES, policy)
        await world.join()
        assert [name_of(each) for each in await world.physical.client.list(POLICIES)] == ["mine"]

    in_a_world(scenario)


def test_existing_namespace_is_labelled_but_never_deleted() -> None:
    async def scenario(world: World) -> None:
        await world.physical.client.create(NAMESPACES, object_named("team"))
        await world.join(mount_namespace="team")
        namespace = await world.physical.client.get(NAMESPACES, "team")
        assert labels_of(namespace)[keys.OWNER_POLICY] == keys.OWNER_POLICY_REQUIRED
        assert keys.MANAGED_BY not in labels_of(namespace)
        await world.unjoin()
        assert await world.physical_objects() == ["Namespace team"]

    in_a_world(scenario)


@pytest.mark.parametrize(
    ("resource", "obj", "side"),
    [
        (SECRETS, object_named("east", keys.SYSTEM_NAMESPACE), "virtual"),
        (CLUSTER_ROLES, object_named("account"), "physical"),
    ],
)
def test_foreign_objects_are_not_taken_over(resource: Resource, obj: Object, side: str) -> None:
    async def scenario(world: World) -> None:
        cluster: Cluster = getattr(world, side)
        name = account_name(await world.uid(), "east") if side == "physical" else name_of(obj)
        await cluster.client.create(resource, {"metadata": {**obj["metadata"], "name": name}})
        with pytest.raises(
            JoinError, match=f"{resource.kind} .*{name} in the {side} cluster was not created by Tapestry"
        ):
            await world.join()

    in_a_world(scenario)


def test_missing_permissions_are_reported_and_fail() -> None:
    def review(body: Object) -> Object:
        attributes = body["spec"]["resourceAttributes"]
        return {"allowed": (attributes["verb"], attributes["resource"]) != ("watch", "pods")}

    async def scenario(world: World) -> None:
        with pytest.raises(JoinError, match="1 permissions are missing"):
            await world.join()
        assert [step.subject for step in world.steps if step.result is StepResult.MISSING] == ["watch pods"]
        (granted,) = [step.subject for step in world.steps if step.result is StepResult.GRANTED]
        assert granted.endswith("permissions, checked as the syncer")

    in_a_world(scenario, review)


def test_delayed_permissions_are_waited_for() -> None:
    results = iter([False] * 40)

    def review(_: Object) -> Object:
        return {"allowed": next(results, True)}

    async def scenario(world: World) -> None:
        await world.join()
        assert not kinds_with_result(world.steps, StepResult.MISSING)
        assert kinds_with_result(world.steps, StepResult.GRANTED)

    in_a_world(scenario, review)


def test_terminating_objects_are_waited_for_and_recreated() -> None:
    async def scenario(world: World) -> None:
        client = world.physical.client
        terminating = {"metadata": {"name": MOUNT, "finalizers": ["example.com/held"]}}
        await client.create(NAMESPACES, terminating)
        await client.delete(NAMESPACES, object_named(MOUNT))
        async with asyncio.TaskGroup() as group:
            joining = group.create_task(world.join())
            await asyncio.sleep(5)
            released = await client.patch(NAMESPACES, object_named(MOUNT), {"metadata": {"finalizers": []}})
            await client.replace(NAMESPACES, {**released, "spec": {}}, subresource="finalize")  # it is empty
        assert [step.result for step in joining.result()][:2] == [StepResult.WAITING, StepResult.CREATED]

    in_a_world(scenario)


def test_object_stuck_in_deletion_is_an_error() -> None:
    async def scenario(world: World) -> None:
        terminating = {"metadata": {"name": MOUNT, "finalizers": ["example.com/held"]}}
        await world.physical.client.create(NAMESPACES, terminating)
        await world.physical.client.delete(NAMESPACES, object_named(MOUNT))
        with pytest.raises(JoinError, match=f"Namespace {MOUNT} still exists in the physical cluster"):
            await world.join()

    in_a_world(scenario)


# -- invalid joins are rejected before anything is written


async def check_rejected(world: World, match: str, name: str = "east", **plan: Any) -> None:
    before = world.physical_api.dump(), world.virtual_api.dump()
    with pytest.raises((JoinError, ValueError), match=match):
        await world.join(name, **plan)
    assert (world.physical_api.dump(), world.virtual_api.dump()) == before


def test_cluster_cannot_lease_itself() -> None:
    async def main() -> None:
        api = InProcessApi((*PHYSICAL, CLUSTER_BINDINGS), now=running_clock().now)
        await check_rejected(await new_world(api, api), "a cluster cannot lease itself")

    run(main())


def test_cluster_joins_a_virtual_cluster_once() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        await check_rejected(world, "the cluster has already joined as east", "west")
        await check_rejected(world, "clusterID east belongs to ClusterBinding east", "west", cluster_id="east")

    in_a_world(scenario)


def test_immutable_binding_fields_are_named() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        await check_rejected(world, "give --cluster-id east", cluster_id="other")
        await check_rejected(world, f"give --mount-namespace {MOUNT}", mount_namespace="other")
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        await world.virtual.client.patch(CLUSTER_BINDINGS, binding, {"status": {"identity": "x"}}, subresource="status")
        await check_rejected(world, "is bound to another cluster, x")

    in_a_world(scenario)


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        ({"cluster_id": "Not-A-Label"}, r"spec\.clusterID: .*choose another with --cluster-id"),
        ({"offer": Offer(time_zone="Mars/North")}, r"spec\.timeZone: 'Mars/North' is not a time zone"),
        ({"offer": Offer(windows=({"start": "25:00", "end": "06:00"},))}, r"spec\.timeWindows\[0\]\.start"),
    ],
)
def test_invalid_plan_names_its_field(plan: dict[str, Any], match: str) -> None:
    in_a_world(lambda world: check_rejected(world, match, **plan))


def test_virtual_cluster_without_crds_explains_setup() -> None:
    async def main() -> None:
        now = running_clock().now
        bare = InProcessApi([NAMESPACES, SECRETS], now=now)
        await check_rejected(await new_world(bare, InProcessApi(PHYSICAL, now=now)), "run `tapestry manifests --image")

    run(main())


@pytest.mark.parametrize(
    "access", [Access("http://east.example"), Access("https://e.example", verification=ServerVerification(None, True))]
)
def test_unverifiable_server_is_rejected(access: Access) -> None:
    with pytest.raises(JoinError, match="cannot be used by a syncer"):
        kubeconfig(access, "token")


# -- tokens


def claims(issued: int, expires: int, uid: str = "u") -> Object:
    return {"iat": issued, "exp": expires, "kubernetes.io": {"serviceaccount": {"uid": uid}}}


@given(issued=st.integers(0, 2**31), life=st.integers(10, 2**24), age=st.floats(0, 1.5))
def test_token_is_reused_until_renewal_time(issued: int, life: int, age: float) -> None:
    account = {"metadata": {"uid": "u"}}
    now = datetime.fromtimestamp(issued + int(age * life), UTC)
    assert is_token_reusable(claims(issued, issued + life), account, now) == (int(age * life) < 0.8 * life)
    assert not is_token_reusable(claims(issued, issued + life, "of a namesake"), account, now)


@pytest.mark.parametrize("found", [{}, {"iat": 1}, {"iat": "x", "exp": "y"}])
def test_token_without_issue_time_is_renewed(found: Object) -> None:
    assert not is_token_reusable(found, {"metadata": {"uid": ""}}, datetime.now(UTC))


# -- offers


@pytest.mark.parametrize(("text", "part"), [("0%", 0), ("50%", 50), ("100%", 100)])
def test_percentage_is_parsed(text: str, part: int) -> None:
    assert parse_percent(text) == part


@pytest.mark.parametrize("text", ["50", "101%", "-1%", "half", "", "5 0%"])
def test_invalid_percentage_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 50%"):
        parse_percent(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("22:00-06:00", {"start": "22:00", "end": "06:00"}),
        ("22:00-24:00 Mon,tuesday", {"start": "22:00", "end": "24:00", "days": ["Mon", "tuesday"]}),
    ],
)
def test_window_is_parsed(text: str, found: Object) -> None:
    assert parse_window(text) == found
    assert parse_windows([text]) == (found,)
    validate_offer(Offer(windows=(found,)))


@pytest.mark.parametrize(
    "text", ["22-06", "22:00", "22:00-06:00 1,2", "22:00 - 06:00", "25:00-06:00", "22:00-24:01", "22:00-06:00 Mon,Foo"]
)
def test_invalid_window_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a window; write it as"):
        parse_window(text)


def test_always_removes_windows_and_nothing_keeps_them() -> None:
    assert parse_windows(["always"]) == ()
    assert parse_windows([]) is None


# -- unjoin


def test_unjoin_deletes_only_what_join_created() -> None:
    async def scenario(world: World) -> None:
        await world.physical.client.create(CLUSTER_ROLES, object_named("somebody-elses"))
        before = await world.physical_objects()
        await world.join()
        steps = await world.unjoin()
        assert await world.physical_objects() == before
        assert await world.virtual.client.list(CLUSTER_BINDINGS) == []
        assert await world.virtual.client.list(SECRETS) == []
        assert len(kinds_with_result(steps, StepResult.DELETED)) == 14

    in_a_world(scenario)


def test_shared_objects_are_deleted_with_the_last_binding() -> None:
    async def main() -> None:
        now = running_clock().now
        physical = InProcessApi(PHYSICAL, now=now)
        one = await new_world(InProcessApi(VIRTUAL, now=now), physical)
        other = World(InProcessApi(VIRTUAL, now=now), physical)
        await other.virtual.client.create(NAMESPACES, object_named("kube-system"))
        await one.join()
        alone = await one.physical_objects()
        await other.join()
        await other.unjoin()
        assert await one.physical_objects() == alone
        await one.unjoin()
        assert await one.physical_objects() == []

    run(main())


def test_used_namespace_and_crd_remain_and_are_reported() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        await world.physical.client.create(PODS, specimen(PODS, "guest", MOUNT))
        await world.physical.client.create(POLICIES, {**object_named("mine"), "spec": {"cluster": "other"}})
        left = {step.subject: step.note for step in await world.unjoin() if step.result is StepResult.LEFT}
        assert left == {
            f"CustomResourceDefinition {POLICIES.name}": "it contains ResourceLeasingPolicy mine",
            f"Namespace {MOUNT}": "it contains Pod guest",
        }

    in_a_world(scenario)


async def add_stuck_binding(world: World) -> None:
    """Create a binding whose syncer and manager do not run any more."""
    await world.join()
    binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
    finalizers = [keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER]
    await world.virtual.client.patch(CLUSTER_BINDINGS, binding, {"metadata": {"finalizers": finalizers}})
    labels = {keys.CLUSTER_BINDING_UID: binding["metadata"]["uid"]}
    await world.virtual.client.create(NODES, {"metadata": {"name": "vnode-east-n1", "labels": labels}})
    pod = with_value(specimen(PODS, "work", "default"), ("spec", "nodeName"), "vnode-east-n1")
    await world.virtual.client.create(PODS, pod)


def test_stuck_binding_error_suggests_force() -> None:
    async def scenario(world: World) -> None:
        await add_stuck_binding(world)
        with pytest.raises(JoinError, match=r"still exists after 60 s; .*`tapestry unjoin east --force`"):
            await world.unjoin(timeout=60)
        first, second, *_, last = [step.note for step in world.steps]
        assert (first, second) == ("its syncer", "its syncer; pods have 25 s left to terminate")
        assert last == "its syncer; 55 s so far"
        assert len(await world.virtual.client.list(NODES)) == 1

    in_a_world(scenario)


def test_unjoin_counts_down_and_suggests_force_when_stuck() -> None:
    async def scenario(world: World) -> None:
        await add_stuck_binding(world)
        with pytest.raises(JoinError):
            await world.unjoin(timeout=120)
        notes = [step.note for step in world.steps]
        left = [note for note in notes if "left to terminate" in note]
        assert [note.split()[-5] for note in left] == ["25", "20", "15", "10", "5"]
        stuck = [note for note in notes if "--force" in note]
        assert stuck == notes[-len(stuck) :]
        assert stuck[0].startswith("its syncer; 60 s so far; ")

    in_a_world(scenario)


def test_forced_unjoin_deletes_binding_and_reports_leftovers() -> None:
    async def scenario(world: World) -> None:
        await add_stuck_binding(world)
        steps = await world.unjoin(force=True)
        for resource in (CLUSTER_BINDINGS, NODES, PODS, SECRETS):
            assert await world.virtual.client.list(resource) == []
        (left,) = (step.subject for step in steps if step.result is StepResult.LEFT)
        assert "twins of the pods default/work" in left

    in_a_world(scenario)


class UnreachableTransport:
    """A transport to an unreachable cluster."""

    async def send(self, request: object) -> Any:
        raise TransportError(f"{request}: nobody is there", maybe_sent=False)


def test_forced_unjoin_of_unreachable_cluster_lists_leftovers() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        unreachable = Cluster("physical", Client(UnreachableTransport()), world.steps.append)  # type: ignore[arg-type]
        world.steps.clear()
        await unjoin("east", world.virtual, unreachable, force=True)
        name = account_name(await world.uid(), "east")
        assert f"ClusterRole {name}" in [step.subject for step in world.steps if step.result is StepResult.LEFT]
        assert await world.virtual.client.list(CLUSTER_BINDINGS) == []
        await world.unjoin()  # reachable again
        assert await world.physical_objects() == []

    in_a_world(scenario)


async def add_leftovers(world: World, *physical_objects: Object) -> Object:
    """Force the unjoin of a binding whose unreachable cluster has objects.  Return the binding as it was."""
    await world.join()
    client, identity = world.virtual.client, await world.physical.identity()
    binding = await client.patch(
        CLUSTER_BINDINGS, object_named("east"), {"status": {"identity": identity}}, subresource="status"
    )
    finalizers = {"metadata": {"finalizers": [keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER]}}
    await client.patch(CLUSTER_BINDINGS, object_named("east"), finalizers)
    labels = binding_of(binding, await world.uid()).owner_labels()
    for obj in physical_objects:
        await world.physical.client.create(PODS, with_value(obj, ("metadata", "labels"), labels))
    unreachable = Cluster("physical", Client(UnreachableTransport()), world.steps.append)  # type: ignore[arg-type]
    world.steps.clear()
    await unjoin("east", world.virtual, unreachable, force=True)
    return binding


def test_safety_rule_8_kubeconfig_stays_until_leftovers_are_deleted() -> None:
    async def scenario(world: World) -> None:
        binding = await add_leftovers(world, specimen(PODS, "twin", MOUNT))
        (reported,) = (step for step in world.steps if step.subject == f"Secret {keys.SYSTEM_NAMESPACE}/east")
        assert reported.result is StepResult.LEFT
        assert f"ClusterBinding east ({binding['metadata']['uid']}) in namespace {MOUNT}" in reported.note
        secret = await world.virtual.client.get(SECRETS, "east", keys.SYSTEM_NAMESPACE)
        assert [each.uid for each in leftovers_in(secret)] == [binding["metadata"]["uid"]]
        await world.unjoin()  # the cluster is reachable again
        assert await world.physical.client.list(PODS) == []
        assert await world.physical_objects() == []
        assert await world.virtual.client.list(SECRETS) == []

    in_a_world(scenario)


def test_safety_rule_8_leftovers_are_left_to_the_manager() -> None:
    async def scenario(world: World) -> None:
        await add_leftovers(world, specimen(PODS, "twin", MOUNT))
        await unjoin("east", world.virtual, None)
        assert len(await world.virtual.client.list(SECRETS)) == 1
        assert len(await world.physical.client.list(PODS)) == 1

    in_a_world(scenario)


def test_stuck_leftovers_fail_and_keep_the_account() -> None:
    async def scenario(world: World) -> None:
        await add_leftovers(world, specimen(PODS, "twin", MOUNT, finalizers=["example.com/theirs"]))
        before = await world.physical_objects()
        with pytest.raises(JoinError, match=f"still being deleted in the physical cluster: Pod {MOUNT}/twin"):
            await world.unjoin()
        assert await world.physical_objects() == before
        assert len(await world.virtual.client.list(SECRETS)) == 1

    in_a_world(scenario)


def test_leftovers_of_another_cluster_are_not_deleted_here() -> None:
    async def scenario(world: World) -> None:
        await add_leftovers(world, specimen(PODS, "twin", MOUNT))
        other = await new_world(world.virtual_api, InProcessApi(PHYSICAL, now=running_clock().now))
        await other.unjoin()
        assert len(await world.physical.client.list(PODS)) == 1
        assert len(await world.virtual.client.list(SECRETS)) == 1

    in_a_world(scenario)


def test_unreachable_cluster_without_force_is_an_error() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        unreachable = Cluster("physical", Client(UnreachableTransport()), world.steps.append)  # type: ignore[arg-type]
        with pytest.raises(JoinError, match="the physical cluster is unreachable"):
            await unjoin("east", world.virtual, unreachable)

    in_a_world(scenario)


def test_unjoin_of_unknown_binding_is_an_error() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(JoinError, match="ClusterBinding nobody does not exist"):
            await unjoin("nobody", world.virtual, None)

    in_a_world(scenario)
