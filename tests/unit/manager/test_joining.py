"""Joining and leaving: what is made in both clusters, what is left alone, and what is refused."""

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
from tapestry.apis.permissions import SYNCER_IN_PHYSICAL, SYNCER_VOLUMES, Placeholder, policy_rules, with_names
from tapestry.apis.policies import POLICIES
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.credentials import Credentials, StaticAuthorization, bearer_header
from tapestry.client.strict_kubeconfig import strict_access
from tapestry.client.tls import ServerVerification
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
        """The steps of one run, but for the rights."""
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

    async def below(self) -> list[str]:
        """What there is below of what join makes, as `Kind name`, and is there to stay."""
        client = self.physical.client
        found = [
            f"{kind.kind} {name_of(each)}"
            for kind in MADE_BELOW
            for each in await client.list(kind)
            if not is_deleting(each)  # nobody is at work here who empties namespaces and definitions
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
        await scenario(await a_world(InProcessApi(VIRTUAL, now=now), InProcessApi(PHYSICAL, now=now, review=review)))

    run(main())


async def a_world(virtual: InProcessApi, physical: InProcessApi) -> World:
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


def by_mark(steps: list[Step], *marks: StepResult) -> list[str]:
    return [step.subject.split()[0] for step in steps if step.result in marks]


# -- joining


def test_everything_is_made_and_marked_and_a_second_run_makes_nothing() -> None:
    async def scenario(world: World) -> None:
        first = await world.join()
        made = by_mark(first, StepResult.CREATED)
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
        assert by_mark(second, StepResult.CREATED) == []
        assert by_mark(second, StepResult.UPDATED) == ["Secret"]  # a token of this server does not tell its age

    in_a_world(scenario)


def test_a_cluster_with_simulated_nodes_lets_their_annotations_pass() -> None:
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


def test_the_account_below_has_the_rights_of_the_table_and_no_others() -> None:
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
            sorted(with_names(SYNCER_IN_PHYSICAL, places), key=lambda right: bool(right.namespace))
        )
        bound = await client.get(CLUSTER_ROLE_BINDINGS, name)
        assert bound["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": MOUNT}]

    in_a_world(scenario)


def test_rights_over_volumes_come_and_go_with_the_drivers_that_the_binding_allows() -> None:
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


def test_the_secret_holds_a_kubeconfig_that_a_binding_may_use() -> None:
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
    """The namespace and the ClusterRoleBinding of `tapestry manifests -n namespace`."""
    client = world.virtual.client
    await client.create(NAMESPACES, object_named(namespace))
    for each in installation_objects(namespace=namespace):
        if each["kind"] == CLUSTER_ROLE_BINDINGS.kind:
            await client.create(CLUSTER_ROLE_BINDINGS, each)


def test_join_writes_the_secret_to_the_namespace_of_the_manager() -> None:
    async def scenario(world: World) -> None:
        await install_manager(world, "grid")
        await world.join()
        assert await world.virtual.client.find(SECRETS, "east", "grid") is not None
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        assert validated_spec(binding, [], BindingsConfig(namespace="grid").secret_namespaces)
        await world.unjoin(force=True)
        assert await world.virtual.client.find(SECRETS, "east", "grid") is None

    in_a_world(scenario)


def test_join_gives_no_secret_to_a_tenant_with_a_deployment_like_the_manager() -> None:
    async def scenario(world: World) -> None:
        client = world.virtual.client
        await client.create(NAMESPACES, object_named("tenant"))
        await client.create(
            DEPLOYMENTS, next(each for each in installation_objects(namespace="tenant") if each["kind"] == "Deployment")
        )
        await world.join()
        assert await client.find(SECRETS, "east", "tenant") is None

    in_a_world(scenario)


def test_join_writes_the_secret_to_the_namespace_that_it_is_told() -> None:
    async def scenario(world: World) -> None:
        await install_manager(world, "grid")
        await world.join(namespace="kubeconfigs")
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        assert binding["spec"]["secretRef"] == {"name": "east", "namespace": "kubeconfigs"}
        assert await world.virtual.client.find(SECRETS, "east", "kubeconfigs") is not None

    in_a_world(scenario)


def test_join_warns_of_a_loopback_address_and_refuses_a_link_local_one() -> None:
    async def scenario(world: World) -> None:
        async def join_at(server: str) -> None:
            access = replace(ACCESS, server=server)
            connect = lambda _: world.physical_api.connect()  # noqa: E731
            clusters = world.virtual, world.physical
            await join(Plan("east", "east"), *clusters, access, connect=connect, now=running_clock().now())

        with pytest.raises(JoinError, match="it is a link-local address"):
            await join_at("https://169.254.1.1:6443")
        assert await world.below() == []
        await join_at("https://127.0.0.1:6443")
        [warning] = [step for step in world.steps if step.result is StepResult.WARNING]
        assert "--allow-loopback" in warning.note
        assert await world.virtual.client.find(CLUSTER_BINDINGS, "east") is not None

    in_a_world(scenario)


def test_every_resource_that_a_node_has_gets_the_limit_so_that_none_is_lent_whole() -> None:
    async def scenario(world: World) -> None:
        await world.join(offer=Offer(percent=30))
        limits = {each["resource"]: each["percent"] for each in (await world.policy())["spec"]["resourceLimits"]}
        assert limits == dict.fromkeys(("cpu", "ephemeral-storage", "memory", "nvidia.com/gpu", "pods"), 30)

    in_a_world(scenario)


def test_what_an_offer_does_not_name_stays_as_the_owner_has_it() -> None:
    async def scenario(world: World) -> None:
        await world.join(offer=Offer(windows=parse_windows(["22:00-06:00 Mon"]), grace_seconds=60))
        await world.physical.client.patch(POLICIES, await world.policy(), {"spec": {"resourceLimits": []}})
        assert "ResourceLeasingPolicy" not in by_mark(await world.join(), StepResult.UPDATED, StepResult.CREATED)
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


def test_a_policy_that_the_owner_wrote_before_is_not_widened_by_a_default_one() -> None:
    async def scenario(world: World) -> None:
        policy = {
            **object_named("mine"),
            "spec": {"cluster": "east", "resourceLimits": [{"resource": "cpu", "percent": 1}]},
        }
        await world.physical.client.create(POLICIES, policy)
        await world.join()
        assert [name_of(each) for each in await world.physical.client.list(POLICIES)] == ["mine"]

    in_a_world(scenario)


def test_a_namespace_that_was_there_is_labelled_and_never_deleted() -> None:
    async def scenario(world: World) -> None:
        await world.physical.client.create(NAMESPACES, object_named("team"))
        await world.join(mount_namespace="team")
        namespace = await world.physical.client.get(NAMESPACES, "team")
        assert labels_of(namespace)[keys.OWNER_POLICY] == keys.OWNER_POLICY_REQUIRED
        assert keys.MANAGED_BY not in labels_of(namespace)
        await world.unjoin()
        assert await world.below() == ["Namespace team"]

    in_a_world(scenario)


@pytest.mark.parametrize(
    ("resource", "obj", "side"),
    [
        (SECRETS, object_named("east", keys.SYSTEM_NAMESPACE), "virtual"),
        (CLUSTER_ROLES, object_named("account"), "physical"),
    ],
)
def test_what_somebody_else_made_is_not_taken_over(resource: Resource, obj: Object, side: str) -> None:
    async def scenario(world: World) -> None:
        cluster: Cluster = getattr(world, side)
        name = account_name(await world.uid(), "east") if side == "physical" else name_of(obj)
        await cluster.client.create(resource, {"metadata": {**obj["metadata"], "name": name}})
        with pytest.raises(JoinError, match=f"{resource.kind} .*{name} in the {side} cluster was not made by join"):
            await world.join()

    in_a_world(scenario)


def test_rights_that_stay_missing_are_told_and_end_the_run() -> None:
    def review(asked: Object) -> Object:
        attributes = asked["spec"]["resourceAttributes"]
        return {"allowed": (attributes["verb"], attributes["resource"]) != ("watch", "pods")}

    async def scenario(world: World) -> None:
        with pytest.raises(JoinError, match="1 rights are missing"):
            await world.join()
        assert [step.subject for step in world.steps if step.result is StepResult.MISSING] == ["watch pods"]
        (granted,) = [step.subject for step in world.steps if step.result is StepResult.GRANTED]
        assert granted.endswith("rights, asked for as the syncer")

    in_a_world(scenario, review)


def test_rights_that_take_a_moment_are_waited_for() -> None:
    refusals = iter([False] * 40)

    def review(_: Object) -> Object:
        return {"allowed": next(refusals, True)}

    async def scenario(world: World) -> None:
        await world.join()
        assert not by_mark(world.steps, StepResult.MISSING)
        assert by_mark(world.steps, StepResult.GRANTED)

    in_a_world(scenario, review)


def test_what_is_being_deleted_is_waited_for_and_made_anew() -> None:
    async def scenario(world: World) -> None:
        client = world.physical.client
        going = {"metadata": {"name": MOUNT, "finalizers": ["example.com/held"]}}
        await client.create(NAMESPACES, going)
        await client.delete(NAMESPACES, object_named(MOUNT))
        async with asyncio.TaskGroup() as group:
            joining = group.create_task(world.join())
            await asyncio.sleep(5)
            held = await client.patch(NAMESPACES, object_named(MOUNT), {"metadata": {"finalizers": []}})
            await client.replace(NAMESPACES, {**held, "spec": {}}, subresource="finalize")  # it is empty
        assert [step.result for step in joining.result()][:2] == [StepResult.WAITING, StepResult.CREATED]

    in_a_world(scenario)


def test_what_stays_in_its_deletion_is_an_error() -> None:
    async def scenario(world: World) -> None:
        going = {"metadata": {"name": MOUNT, "finalizers": ["example.com/held"]}}
        await world.physical.client.create(NAMESPACES, going)
        await world.physical.client.delete(NAMESPACES, object_named(MOUNT))
        with pytest.raises(JoinError, match=f"Namespace {MOUNT} is still being deleted in the physical cluster"):
            await world.join()

    in_a_world(scenario)


# -- what cannot be joined is refused before anything is written


async def check_refused(world: World, match: str, name: str = "east", **plan: Any) -> None:
    before = world.physical_api.dump(), world.virtual_api.dump()
    with pytest.raises((JoinError, ValueError), match=match):
        await world.join(name, **plan)
    assert (world.physical_api.dump(), world.virtual_api.dump()) == before


def test_a_cluster_cannot_lease_itself() -> None:
    async def main() -> None:
        api = InProcessApi((*PHYSICAL, CLUSTER_BINDINGS), now=running_clock().now)
        await check_refused(await a_world(api, api), "a cluster cannot lease itself")

    run(main())


def test_a_cluster_joins_one_virtual_cluster_once() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        await check_refused(world, "the cluster has joined as east already", "west")
        await check_refused(world, "clusterID east belongs to ClusterBinding east", "west", cluster_id="east")

    in_a_world(scenario)


def test_what_a_binding_has_for_good_is_named_when_a_second_run_says_otherwise() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        await check_refused(world, "give --cluster-id east", cluster_id="other")
        await check_refused(world, f"give --mount-namespace {MOUNT}", mount_namespace="other")
        binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
        await world.virtual.client.patch(CLUSTER_BINDINGS, binding, {"status": {"identity": "x"}}, subresource="status")
        await check_refused(world, "is of another cluster, x")

    in_a_world(scenario)


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        ({"cluster_id": "Not-A-Label"}, r"spec\.clusterID: .*choose another with --cluster-id"),
        ({"offer": Offer(time_zone="Mars/North")}, r"spec\.timeZone: 'Mars/North' is not a time zone"),
        ({"offer": Offer(windows=({"start": "25:00", "end": "06:00"},))}, r"spec\.timeWindows\[0\]\.start"),
    ],
)
def test_a_plan_that_cannot_be_meant_names_its_field(plan: dict[str, Any], match: str) -> None:
    in_a_world(lambda world: check_refused(world, match, **plan))


def test_a_virtual_cluster_that_knows_no_bindings_says_how_to_prepare_it() -> None:
    async def main() -> None:
        now = running_clock().now
        bare = InProcessApi([NAMESPACES, SECRETS], now=now)
        await check_refused(await a_world(bare, InProcessApi(PHYSICAL, now=now)), "run `tapestry manifests")

    run(main())


@pytest.mark.parametrize(
    "access", [Access("http://east.example"), Access("https://e.example", verification=ServerVerification(None, True))]
)
def test_a_server_that_a_syncer_could_not_trust_is_refused(access: Access) -> None:
    with pytest.raises(JoinError, match="will not do for a syncer"):
        kubeconfig(access, "token")


# -- tokens


def claims(issued: int, expires: int, uid: str = "u") -> Object:
    return {"iat": issued, "exp": expires, "kubernetes.io": {"serviceaccount": {"uid": uid}}}


@given(issued=st.integers(0, 2**31), life=st.integers(10, 2**24), age=st.floats(0, 1.5))
def test_a_token_goes_on_for_four_fifths_of_its_life(issued: int, life: int, age: float) -> None:
    account = {"metadata": {"uid": "u"}}
    now = datetime.fromtimestamp(issued + int(age * life), UTC)
    assert is_token_reusable(claims(issued, issued + life), account, now) == (int(age * life) < 0.8 * life)
    assert not is_token_reusable(claims(issued, issued + life, "of a namesake"), account, now)


@pytest.mark.parametrize("found", [{}, {"iat": 1}, {"iat": "x", "exp": "y"}])
def test_a_token_that_does_not_tell_its_age_is_old(found: Object) -> None:
    assert not is_token_reusable(found, {"metadata": {"uid": ""}}, datetime.now(UTC))


# -- offers


@pytest.mark.parametrize(("text", "part"), [("0%", 0), ("50%", 50), ("100%", 100)])
def test_a_part_is_written_in_percent(text: str, part: int) -> None:
    assert parse_percent(text) == part


@pytest.mark.parametrize("text", ["50", "101%", "-1%", "half", "", "5 0%"])
def test_anything_else_is_no_part(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 50%"):
        parse_percent(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("22:00-06:00", {"start": "22:00", "end": "06:00"}),
        ("22:00-24:00 Mon,tuesday", {"start": "22:00", "end": "24:00", "days": ["Mon", "tuesday"]}),
    ],
)
def test_a_window_is_written_as_it_is_read(text: str, found: Object) -> None:
    assert parse_window(text) == found
    assert parse_windows([text]) == (found,)
    validate_offer(Offer(windows=(found,)))


@pytest.mark.parametrize(
    "text", ["22-06", "22:00", "22:00-06:00 1,2", "22:00 - 06:00", "25:00-06:00", "22:00-24:01", "22:00-06:00 Mon,Foo"]
)
def test_anything_else_is_no_window(text: str) -> None:
    with pytest.raises(ValueError, match="is not a window; write it as"):
        parse_window(text)


def test_always_takes_windows_away_and_nothing_leaves_them() -> None:
    assert parse_windows(["always"]) == ()
    assert parse_windows([]) is None


# -- leaving


def test_leaving_removes_what_joining_made_and_nothing_else() -> None:
    async def scenario(world: World) -> None:
        await world.physical.client.create(CLUSTER_ROLES, object_named("somebody-elses"))
        before = await world.below()
        await world.join()
        steps = await world.unjoin()
        assert await world.below() == before
        assert await world.virtual.client.list(CLUSTER_BINDINGS) == []
        assert await world.virtual.client.list(SECRETS) == []
        assert len(by_mark(steps, StepResult.DELETED)) == 14

    in_a_world(scenario)


def test_what_two_virtual_clusters_share_goes_with_the_last_of_them() -> None:
    async def main() -> None:
        now = running_clock().now
        physical = InProcessApi(PHYSICAL, now=now)
        one = await a_world(InProcessApi(VIRTUAL, now=now), physical)
        other = World(InProcessApi(VIRTUAL, now=now), physical)
        await other.virtual.client.create(NAMESPACES, object_named("kube-system"))
        await one.join()
        alone = await one.below()
        await other.join()
        await other.unjoin()
        assert await one.below() == alone
        await one.unjoin()
        assert await one.below() == []

    run(main())


def test_a_namespace_with_something_in_it_and_a_kind_with_an_owners_policy_are_left_and_listed() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        await world.physical.client.create(PODS, specimen(PODS, "guest", MOUNT))
        await world.physical.client.create(POLICIES, {**object_named("mine"), "spec": {"cluster": "other"}})
        left = {step.subject: step.note for step in await world.unjoin() if step.result is StepResult.LEFT}
        assert left == {
            f"CustomResourceDefinition {POLICIES.name}": "it holds ResourceLeasingPolicy mine",
            f"Namespace {MOUNT}": "it holds Pod guest",
        }

    in_a_world(scenario)


async def held(world: World) -> None:
    """A binding whose syncer and manager are gone without a word."""
    await world.join()
    binding = await world.virtual.client.get(CLUSTER_BINDINGS, "east")
    finalizers = [keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER]
    await world.virtual.client.patch(CLUSTER_BINDINGS, binding, {"metadata": {"finalizers": finalizers}})
    labels = {keys.CLUSTER_BINDING_UID: binding["metadata"]["uid"]}
    await world.virtual.client.create(NODES, {"metadata": {"name": "vnode-east-n1", "labels": labels}})
    pod = with_value(specimen(PODS, "work", "default"), ("spec", "nodeName"), "vnode-east-n1")
    await world.virtual.client.create(PODS, pod)


def test_a_binding_that_nobody_sees_to_is_an_error_that_says_how_to_force_it() -> None:
    async def scenario(world: World) -> None:
        await held(world)
        with pytest.raises(JoinError, match=r"still there after 60 s; .*`tapestry unjoin east --force`"):
            await world.unjoin(timeout=60)
        first, second, *_, last = [step.note for step in world.steps]
        assert (first, second) == ("its syncer", "its syncer; pods have 25 s left to end")
        assert last == "its syncer; 55 s so far"
        assert len(await world.virtual.client.list(NODES)) == 1

    in_a_world(scenario)


def test_unjoin_counts_down_and_suggests_force_only_once_it_is_stuck() -> None:
    async def scenario(world: World) -> None:
        await held(world)
        with pytest.raises(JoinError):
            await world.unjoin(timeout=120)
        notes = [step.note for step in world.steps]
        left = [note for note in notes if "left to end" in note]
        assert [note.split()[-5] for note in left] == ["25", "20", "15", "10", "5"]
        stuck = [note for note in notes if "--force" in note]
        assert stuck == notes[-len(stuck) :]
        assert stuck[0].startswith("its syncer; 60 s so far; ")

    in_a_world(scenario)


def test_by_force_a_binding_goes_without_anybody_and_what_is_left_is_told() -> None:
    async def scenario(world: World) -> None:
        await held(world)
        steps = await world.unjoin(force=True)
        for resource in (CLUSTER_BINDINGS, NODES, PODS, SECRETS):
            assert await world.virtual.client.list(resource) == []
        (left,) = (step.subject for step in steps if step.result is StepResult.LEFT)
        assert "twins of the pods default/work" in left

    in_a_world(scenario)


class Silent:
    """A cluster that nobody reaches."""

    async def send(self, request: object) -> Any:
        raise TransportError(f"{request}: nobody is there", maybe_sent=False)


def test_a_cluster_that_does_not_answer_is_left_by_force_with_a_list_of_what_is_there() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        nobody = Cluster("physical", Client(Silent()), world.steps.append)  # type: ignore[arg-type]
        world.steps.clear()
        await unjoin("east", world.virtual, nobody, force=True)
        name = account_name(await world.uid(), "east")
        assert f"ClusterRole {name}" in [step.subject for step in world.steps if step.result is StepResult.LEFT]
        assert await world.virtual.client.list(CLUSTER_BINDINGS) == []
        await world.unjoin()  # it is back
        assert await world.below() == []

    in_a_world(scenario)


async def forsaken(world: World, *below: Object) -> Object:
    """A binding that nobody was at work for, and that left something in a cluster that did not answer; as it was."""
    await world.join()
    client, identity = world.virtual.client, await world.physical.identity()
    binding = await client.patch(
        CLUSTER_BINDINGS, object_named("east"), {"status": {"identity": identity}}, subresource="status"
    )
    finalizers = {"metadata": {"finalizers": [keys.MANAGER_FINALIZER, keys.SYNCER_FINALIZER]}}
    await client.patch(CLUSTER_BINDINGS, object_named("east"), finalizers)
    labels = binding_of(binding, await world.uid()).owner_labels()
    for obj in below:
        await world.physical.client.create(PODS, with_value(obj, ("metadata", "labels"), labels))
    nobody = Cluster("physical", Client(Silent()), world.steps.append)  # type: ignore[arg-type]
    world.steps.clear()
    await unjoin("east", world.virtual, nobody, force=True)
    return binding


def test_safety_rule_8_the_kubeconfig_stays_until_what_was_left_by_force_is_gone() -> None:
    async def scenario(world: World) -> None:
        binding = await forsaken(world, specimen(PODS, "twin", MOUNT))
        (kept,) = (step for step in world.steps if step.subject == f"Secret {keys.SYSTEM_NAMESPACE}/east")
        assert kept.result is StepResult.LEFT
        assert f"ClusterBinding east ({binding['metadata']['uid']}) left in namespace {MOUNT}" in kept.note
        secret = await world.virtual.client.get(SECRETS, "east", keys.SYSTEM_NAMESPACE)
        assert [each.uid for each in leftovers_in(secret)] == [binding["metadata"]["uid"]]
        await world.unjoin()  # the cluster is back
        assert await world.physical.client.list(PODS) == []
        assert await world.below() == []
        assert await world.virtual.client.list(SECRETS) == []

    in_a_world(scenario)


def test_safety_rule_8_without_the_cluster_at_hand_the_rest_is_for_the_manager() -> None:
    async def scenario(world: World) -> None:
        await forsaken(world, specimen(PODS, "twin", MOUNT))
        await unjoin("east", world.virtual, None)
        assert len(await world.virtual.client.list(SECRETS)) == 1
        assert len(await world.physical.client.list(PODS)) == 1

    in_a_world(scenario)


def test_what_was_left_by_force_and_does_not_go_is_an_error_and_keeps_the_account() -> None:
    async def scenario(world: World) -> None:
        await forsaken(world, specimen(PODS, "twin", MOUNT, finalizers=["example.com/theirs"]))
        before = await world.below()
        with pytest.raises(JoinError, match=f"still being deleted in the physical cluster: Pod {MOUNT}/twin"):
            await world.unjoin()
        assert await world.below() == before
        assert len(await world.virtual.client.list(SECRETS)) == 1

    in_a_world(scenario)


def test_what_was_left_by_force_in_another_cluster_is_not_looked_for_in_this_one() -> None:
    async def scenario(world: World) -> None:
        await forsaken(world, specimen(PODS, "twin", MOUNT))
        other = await a_world(world.virtual_api, InProcessApi(PHYSICAL, now=running_clock().now))
        await other.unjoin()
        assert len(await world.physical.client.list(PODS)) == 1
        assert len(await world.virtual.client.list(SECRETS)) == 1

    in_a_world(scenario)


def test_without_force_a_cluster_that_does_not_answer_is_an_error() -> None:
    async def scenario(world: World) -> None:
        await world.join()
        nobody = Cluster("physical", Client(Silent()), world.steps.append)  # type: ignore[arg-type]
        with pytest.raises(JoinError, match="the physical cluster does not answer"):
            await unjoin("east", world.virtual, nobody)

    in_a_world(scenario)


def test_leaving_a_cluster_that_never_joined_is_an_error() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(JoinError, match="there is no ClusterBinding nobody"):
            await unjoin("nobody", world.virtual, None)

    in_a_world(scenario)
