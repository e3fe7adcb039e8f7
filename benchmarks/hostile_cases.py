"""Requests that cost a server more than their sender, and requests that are merely large."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import msgspec

from tapestry.kube.objects import Object

ENCODE = msgspec.json.encode
NAMESPACE = "hostile"
NAMESPACE_PATH = f"/api/v1/namespaces/{NAMESPACE}"
RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CUSTOM = f"/apis/hostile.example/v1/namespaces/{NAMESPACE}"
REVIEWS = "/apis/authorization.k8s.io/v1"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
JSON, YAML = "application/json", "application/yaml"
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
TENANT = "mallory"
"""User with all permissions in the namespace and none elsewhere."""
DRY = "?dryRun=All"
LARGEST = 3 << 20


@dataclass(frozen=True)
class Case:
    category: str
    name: str
    method: str
    path: str
    body: Callable[[], bytes] = bytes
    content_type: str = JSON
    accept: str = JSON
    as_tenant: bool = False
    is_stream: bool = False
    """True if the response is endless. Only its beginning is read."""
    headers: dict[str, str] = field(default_factory=dict)


def new_object(name: str, **fields: Any) -> Object:
    return {"metadata": {"name": name}, **fields}


def pod(**spec: Any) -> bytes:
    container = {"name": "c", "image": "i", **spec.pop("container", {})}
    return ENCODE({**new_object("large"), "spec": {"containers": [container], **spec}})


def ports(count: int, **fields: Callable[[int], Any]) -> bytes:
    items = [{name: value(number) for name, value in fields.items()} for number in range(count)]
    return pod(container={"ports": items})


def pods() -> Iterator[Case]:
    def case(name: str, body: Callable[[], bytes]) -> Case:
        return Case("pods", name, "POST", f"{NAMESPACE_PATH}/pods{DRY}", body, as_tenant=True)

    yield case("4,000 equal ports", lambda: ports(4_000, containerPort=lambda _: 80))
    yield case("60,000 equal ports", lambda: ports(60_000, containerPort=lambda _: 80))
    yield case("40,000 host ports", lambda: ports(40_000, containerPort=lambda _: 80, hostPort=lambda n: n + 1))
    yield case(
        "40,000 host addresses",
        lambda: ports(40_000, containerPort=lambda _: 80, hostPort=lambda _: 80, hostIP=lambda n: f"10.0.0.{n % 250}"),
    )
    yield case(
        "30,000 projected paths",
        lambda: pod(
            volumes=[
                {
                    "name": "v",
                    "configMap": {"name": "c", "items": [{"key": "k", "path": f"a/{n}"} for n in range(30_000)]},
                }
            ]
        ),
    )
    yield case(
        "equal projected paths",
        lambda: pod(
            volumes=[
                {"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": "a"} for _ in range(30_000)]}}
            ]
        ),
    )
    yield case(
        "20,000 containers",
        lambda: ENCODE(
            {**new_object("large"), "spec": {"containers": [{"name": f"c{n}", "image": "i"} for n in range(20_000)]}}
        ),
    )
    yield case(
        "60,000 variables", lambda: pod(container={"env": [{"name": f"E{n}", "value": "$(E1)"} for n in range(60_000)]})
    )
    yield case(
        "20,000 volumes and mounts",
        lambda: pod(
            volumes=[{"name": f"v{n}", "emptyDir": {}} for n in range(20_000)],
            container={"volumeMounts": [{"name": f"v{n}", "mountPath": f"/m/{n}"} for n in range(20_000)]},
        ),
    )
    yield case(
        "40,000 tolerations", lambda: pod(tolerations=[{"key": f"k{n}", "operator": "Exists"} for n in range(40_000)])
    )
    yield case(
        "30,000 host aliases",
        lambda: pod(
            hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a"]} for _ in range(30_000)],
            imagePullSecrets=[{"name": "a"} for _ in range(30_000)],
        ),
    )
    yield case(
        "20,000 affinity terms",
        lambda: pod(
            affinity={
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 1,
                            "preference": {"matchExpressions": [{"key": "k", "operator": "In", "values": ["-"]}]},
                        }
                        for _ in range(20_000)
                    ]
                }
            }
        ),
    )
    yield case("100,000 unknown fields", lambda: pod(**{f"unknown{n}": 1 for n in range(100_000)}))
    yield case(
        "150,000 labels",
        lambda: ENCODE(
            {"metadata": {"name": "l", "labels": {f"l{n}": "v" for n in range(150_000)}}, "spec": {"containers": []}}
        ),
    )
    yield case(
        "200,000 wrong labels",
        lambda: ENCODE(
            {"metadata": {"name": "l", "labels": {f"-{n}": "-" for n in range(150_000)}}, "spec": {"containers": []}}
        ),
    )


def rights() -> Iterator[Case]:
    def role(**rule: list[str]) -> bytes:
        return ENCODE(new_object("large", rules=[rule]))

    def names(prefix: str, count: int) -> list[str]:
        return [f"{prefix}{number}" for number in range(count)]

    def case(name: str, body: Callable[[], bytes], path: str = "roles") -> Case:
        return Case("rights", name, "POST", f"{RBAC}/{path}{DRY}", body, as_tenant=True)

    yield case(
        "role of 60 x 60 x 60 x 5",
        lambda: role(
            apiGroups=names("g", 60), resources=names("r", 60), verbs=names("v", 60), resourceNames=names("n", 5)
        ),
    )
    yield case(
        "role of held rights",
        lambda: role(apiGroups=[""], resources=["pods"], verbs=["get"], resourceNames=names("n", 100_000)),
    )
    yield case(
        "role of 20,000 rules",
        lambda: ENCODE(
            new_object("large", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}] * 20_000)
        ),
    )
    subjects = [{"kind": "User", "name": f"u{n}", "apiGroup": "rbac.authorization.k8s.io"} for n in range(30_000)]
    reference = {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}
    yield case(
        "binding of 30,000 users",
        lambda: ENCODE(new_object("large", subjects=subjects, roleRef=reference)),
        "rolebindings",
    )
    groups = {
        "spec": {"user": "a", "groups": names("g", 200_000), "nonResourceAttributes": {"path": "/", "verb": "get"}}
    }
    yield Case("rights", "review of 200,000 groups", "POST", f"{REVIEWS}/subjectaccessreviews", lambda: ENCODE(groups))
    yield Case(
        "rights",
        "review with a long key",
        "POST",
        f"{REVIEWS}/subjectaccessreviews",
        lambda: ENCODE(
            {
                "spec": {
                    "user": "a",
                    "extra": {"k" * (1 << 20): [""] * 200_000},
                    "nonResourceAttributes": {"path": "/", "verb": "get"},
                }
            }
        ),
    )


def patches() -> Iterator[Case]:
    large, many = f"{NAMESPACE_PATH}/configmaps/large", f"{NAMESPACE_PATH}/pods/many"

    def operations(*listed: Object) -> Callable[[], bytes]:
        return lambda: ENCODE(listed)

    def case(name: str, body: Callable[[], bytes], kind: str, path: str = large) -> Case:
        query = "?dryRun=All&fieldManager=hostile&force=true" if kind == APPLY else DRY
        return Case("patches", name, "PATCH", f"{path}{query}", body, kind, as_tenant=True)

    value = "v" * 200
    yield case(
        "10,000 operations on a map",
        operations(*({"op": "add", "path": f"/data/k{n}", "value": value} for n in range(10_000))),
        JSON_PATCH,
    )
    yield case(
        "10,000 insertions into a list",
        operations(
            *({"op": "add", "path": "/metadata/finalizers/0", "value": f"a/{n}"} for n in range(10_000)),
        ),
        JSON_PATCH,
    )
    yield case(
        "10,000 tests of the whole",
        operations(*({"op": "test", "path": "", "value": {"a": n}} for n in range(10_000))),
        JSON_PATCH,
    )
    yield case(
        "10,000 moves",
        operations(
            *({"op": "move", "from": f"/data/{'ab'[n % 2]}", "path": f"/data/{'ba'[n % 2]}"} for n in range(10_000))
        ),
        JSON_PATCH,
    )
    yield case(
        "copies of the whole",
        operations(*({"op": "copy", "from": "/data", "path": "/data/c"} for _ in range(100))),
        JSON_PATCH,
    )
    yield case("merge of 150,000 keys", lambda: ENCODE({"data": {f"k{n}": "v" for n in range(150_000)}}), MERGE_PATCH)
    yield case(
        "one container 20,000 times",
        lambda: ENCODE(
            {"spec": {"containers": [{"name": "c", "resources": {"limits": {f"x/{n}": "1"}}} for n in range(20_000)]}}
        ),
        STRATEGIC,
        many,
    )
    yield case(
        "order of 60,000 elements",
        lambda: ENCODE(
            {
                "spec": {
                    "$setElementOrder/tolerations": [{"key": f"k{n}"} for n in range(60_000)],
                    "$setElementOrder/containers": [{"name": f"c{n}"} for n in range(60_000)],
                }
            }
        ),
        STRATEGIC,
        many,
    )
    yield case(
        "apply 100,000 keys",
        lambda: ENCODE(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                **new_object("large"),
                "data": {f"k{n}": "v" for n in range(100_000)},
            }
        ),
        APPLY,
    )
    container = {
        "name": "c",
        "image": "i",
        "ports": [{"containerPort": n % 60_000 + 1, "protocol": "TCP"} for n in reversed(range(40_000))],
    }
    yield case(
        "apply 40,000 ports",
        lambda: ENCODE({"apiVersion": "v1", "kind": "Pod", **new_object("many"), "spec": {"containers": [container]}}),
        APPLY,
        many,
    )
    yield Case(
        "patches",
        "20,000 managers",
        "POST",
        f"{NAMESPACE_PATH}/configmaps{DRY}",
        lambda: ENCODE(
            {
                "metadata": {
                    "name": "managed",
                    "managedFields": [
                        {
                            "manager": f"m{n}",
                            "operation": "Update",
                            "apiVersion": "v1",
                            "fieldsType": "FieldsV1",
                            "fieldsV1": {"f:data": {f"f:k{n}": {}}},
                        }
                        for n in range(20_000)
                    ],
                },
                "data": {"a": "b"},
            }
        ),
        as_tenant=True,
    )


def bodies() -> Iterator[Case]:
    def case(name: str, body: Callable[[], bytes], kind: str = JSON, path: str = "") -> Case:
        return Case("bodies", name, "POST", path or f"{NAMESPACE_PATH}/configmaps{DRY}", body, kind, as_tenant=True)

    yield case("a million brackets", lambda: b"[" * 1_000_000)
    yield case("empty lists", lambda: b'{"data":[%b[]]}' % (b"[]," * 480_000))
    yield case("empty objects", lambda: b'{"metadata":{"name":"a"},"x":[%b{}]}' % (b"{}," * 480_000))
    yield case("numbers", lambda: b'{"metadata":{"name":"a"},"x":[%b1]}' % (b"1," * 1_500_000))
    yield case("repeated keys", lambda: b'{"metadata":{"name":"a"},"data":{%b"a":"b"}}' % (b'"a":"b",' * 350_000))
    yield case("many keys", lambda: ENCODE({**new_object("a"), "data": {f"{n:06}": "" for n in range(200_000)}}))
    yield case("one long text", lambda: ENCODE({**new_object("a"), "data": {"a": "é" * (1 << 20)}}))
    yield case("escaped text", lambda: b'{"metadata":{"name":"a"},"data":{"a":"%b"}}' % (b"\\u00e9" * 500_000))
    yield case("deep objects", lambda: b'{"a":' * 190 + b"1" + b"}" * 190)
    for name, text in yaml_bombs():
        yield case(f"YAML {name}", lambda text=text: text, YAML, f"{REVIEWS}/selfsubjectaccessreviews")


def yaml_bombs() -> Iterator[tuple[str, bytes]]:
    yield (
        "aliases",
        b"a0: &a0 [x]\n"
        + b"".join(b"a%d: &a%d [%b]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 10)),
    )
    yield (
        "merge keys",
        b"a0: &a0 {x: 1}\n"
        + b"".join(b"a%d: &a%d {<<: [%b]}\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 8)),
    )
    yield "sexagesimal", b"a: " + b":".join([b"1"] * 20_000)
    yield "plain", b"".join(b"k%d: v\n" % n for n in range(30_000))
    yield "deep", b"[" * 5_000


def custom_resources() -> Iterator[Case]:
    def case(name: str, **spec: Any) -> Case:
        body = {"apiVersion": "hostile.example/v1", "kind": "Widget", **new_object("large"), "spec": spec}
        return Case("custom resources", name, "POST", f"{CUSTOM}/widgets{DRY}", lambda: ENCODE(body), as_tenant=True)

    yield case("pattern in 40,000 items", patterns=["a" * 20] * 40_000)
    yield case("pattern over a long text", patterns=["a" * 1_000_000])
    yield case("short text, large pattern", wide=["a" * 100] * 100)
    yield case("100,000 items of a set", set=[f"s{n}" for n in range(100_000)])
    yield case("50,000 items of a map", map=[{"name": f"s{n}", "value": "v"} for n in range(50_000)])
    yield case("enumerated values", enum=["v9999"] * 200_000)
    yield case("values that are not listed", enum=["x"] * 200_000)
    yield case("branches", any=["x"] * 50_000)
    yield case("defaults", defaulted=[{}] * 200_000)
    yield case("a long key", free={"k" * (1 << 20): [1] * 500_000})
    yield case("rules over 20,000 items", numbers=list(range(20_000)))
    yield case("rules in loops", loops=list(range(1_000)))
    yield case("rules on every item", ruled=[{"n": n} for n in range(30_000)])
    yield case("items that break a rule", ruled=[{"n": -1} for n in range(30_000)])
    yield case("pruned fields", **{f"x{n}": 1 for n in range(150_000)})


def widget_definition() -> Object:
    text = {"type": "string"}
    rule = {"rule": "self.all(a, self.all(b, a + b >= 0))"}
    properties = {
        "patterns": {"type": "array", "items": {**text, "pattern": "^(a?){60}a{60}$"}},
        "wide": {"type": "array", "items": {**text, "pattern": "(a{0,30}){0,30}b"}},
        "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
        "map": {
            "type": "array",
            "items": {"type": "object", "required": ["name"], "properties": {"name": text, "value": text}},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "enum": {"type": "array", "items": {**text, "enum": [f"v{n}" for n in range(10_000)]}},
        "any": {"type": "array", "items": {**text, "anyOf": [{"enum": [f"v{n}"]} for n in range(500)]}},
        "defaulted": {
            "type": "array",
            "items": {"type": "object", "properties": {"a": {**text, "default": "d" * 10_000}}},
        },
        "free": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
        "numbers": {
            "type": "array",
            "maxItems": 20_000,
            "items": {"type": "integer"},
            "x-kubernetes-validations": [{"rule": "self.all(a, a >= 0)"}],
        },
        "loops": {"type": "array", "maxItems": 1_000, "items": {"type": "integer"}, "x-kubernetes-validations": [rule]},
        "ruled": {
            "type": "array",
            "maxItems": 30_000,
            "items": {
                "type": "object",
                "properties": {"n": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.n >= 0"}],
            },
        },
    }
    return definition("widgets", "Widget", {"type": "object", "properties": properties})


def definition(plural: str, kind: str, spec: Object, **version: Any) -> Object:
    schema = {"type": "object", "properties": {"spec": spec}}
    served = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
    names = {"plural": plural, "kind": kind}
    scoped = {"group": "hostile.example", "scope": "Namespaced", "names": names, "versions": [served]}
    return {**new_object(f"{plural}.hostile.example"), "spec": scoped}


def large_definition(plural: str, size: int) -> Object:
    """Return a definition of about `size` bytes."""
    field = {"type": "object", "description": "d" * 40, "properties": {"a": {"type": "string", "maxLength": 10}}}
    return definition(plural, "Large", {"type": "object", "properties": {f"f{n}": field for n in range(size // 140)}})


def definitions() -> Iterator[Case]:
    def case(name: str, body: Callable[[], Object], dry: str = DRY) -> Case:
        return Case("definitions", name, "POST", f"{CRDS}{dry}", lambda: ENCODE(body()))

    text = {"type": "string", "maxLength": 10}

    def rules(count: int) -> Object:
        ruled = {**text, "x-kubernetes-validations": [{"rule": "self == 'a' || self.startsWith('b')"}]}
        return definition("rules", "Rules", {"type": "object", "properties": {f"f{n}": ruled for n in range(count)}})

    def columns() -> Object:
        listed = [{"name": f"c{n}", "type": "string", "jsonPath": f".spec.f{n}"} for n in range(20_000)]
        return definition("columns", "Columns", {"type": "object"}, additionalPrinterColumns=listed)

    yield case("a schema of 1.4 MB", lambda: large_definition("larges", 1_400_000))
    yield case("5,000 rules", lambda: rules(5_000))
    yield case("20,000 columns", columns)
    deep: Object = text
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    yield case("a deep schema", lambda: definition("deeps", "Deep", deep))
    long = " || ".join(["self == 'a'"] * 5_000)
    ruled = {**text, "x-kubernetes-validations": [{"rule": long}]}
    yield case("a long rule", lambda: definition("longs", "Long", {"type": "object", "properties": {"a": ruled}}))
    patterns = {f"f{n}": {**text, "pattern": f"^(a{{1,50}}){{1,{n % 100 + 1}}}$"} for n in range(300)}
    yield case("300 patterns", lambda: definition("patterns", "P", {"type": "object", "properties": patterns}))
    variables = [{"name": f"v{n}", "expression": "1"} for n in range(2_000)]
    policy = new_object("many", spec={"variables": variables, "validations": [{"expression": "true"}]})
    yield Case("definitions", "2,000 variables", "POST", f"{POLICIES}{DRY}", lambda: ENCODE(policy))


def queries() -> Iterator[Case]:
    lists = f"/api/v1/namespaces/{NAMESPACE}-full/configmaps"

    def case(name: str, accept: str = JSON, **query: str) -> Case:
        is_stream = "watch" in query
        return Case("queries", name, "GET", f"{lists}?{urlencode(query)}", accept=accept, is_stream=is_stream)

    values = ",".join(f"v{n}" for n in range(10_000))
    yield case("label in 10,000 values", labelSelector=f"shard in ({values})")
    yield case("label notin 10,000 values", labelSelector=f"shard notin ({values})", limit="1")
    yield case("12,000 absent labels", labelSelector=",".join(f"!l{n}" for n in range(12_000)), limit="1")
    yield case("4,000 names", fieldSelector=",".join(f"metadata.name!=n{n}" for n in range(4_000)), limit="1")
    yield case("a field of each object", fieldSelector="metadata.namespace!=x", limit="1")
    yield case("a watch in a Table", TABLE, watch="1")
    yield case(
        "a watch of metadata", METADATA, watch="1", sendInitialEvents="true", resourceVersionMatch="NotOlderThan"
    )
    yield case("a number of 5,000 digits", limit="9" * 5_000)
    yield case("a token that is none", **{"continue": base64.b64encode(b"[" * 3_000).decode()})
    yield case("an endless timeout", timeout="9" * 300 + "h")
    yield Case("queries", "a path of 60,000 segments", "GET", "/api/" + "a/" * 60_000)
    yield Case("queries", "20,000 accepted types", "GET", lists + "?limit=1", accept=",".join(["a/b;q=0.1"] * 6_000))


def plain_rest() -> Iterator[Case]:
    """Yield requests to the plain REST API of the server, which reads all objects of a kind to filter and to sort."""
    lists, maps = f"/apiext/v1/configmaps?namespace={NAMESPACE}-full", f"/apiext/v1/configmaps?namespace={NAMESPACE}"
    one = f"/apiext/v1/configmaps/large?namespace={NAMESPACE}"

    def read(name: str, **query: str) -> Case:
        return Case("plain REST", name, "GET", f"{lists}&{urlencode(query)}", is_stream="watch" in query)

    def write(name: str, method: str, path: str, body: Callable[[], bytes], kind: str = JSON) -> Case:
        return Case("plain REST", name, method, path, body, kind, as_tenant=True)

    yield read("32 terms in all texts", filter=",".join(f"data.text!~y{n}" for n in range(32)))
    yield read("32 terms in all objects", filter=",".join(f".data!~y{n}" for n in range(32)))
    yield read("8 keys in all objects", sort=",".join([".data", "-.data.number", "labels.shard", "-name"] * 2))
    yield read("10,000 terms", filter=",".join(f"name!=n{n}" for n in range(10_000)))
    yield read("10,000 sort keys", sort=",".join("name" for _ in range(10_000)))
    yield read("a field of 50,000 segments", filter=f"{'.a' * 50_000}=b")
    yield read("the last page", sort="-created", page="20", limit="500")
    yield read("a watch with 32 terms", watch="1", filter=",".join(f".data!~y{n}" for n in range(32)))
    yield write("empty objects", "POST", maps, lambda: b'{"name":"a","x":[%b{}]}' % (b"{}," * 480_000))
    yield write(
        "many keys", "POST", maps, lambda: ENCODE({"name": "a", "data": {f"{n:06}": "" for n in range(150_000)}})
    )
    yield write("many fields", "POST", maps, lambda: ENCODE({f"{n:06}": "" for n in range(150_000)}))
    yield write("a refused body", "POST", "/apiext/v1/clusterroles", lambda: b"[" * (2 << 20))
    yield write("a million brackets", "PUT", one, lambda: b"[" * 1_000_000)
    yield write(
        "merge of 150,000 keys", "PATCH", one, lambda: ENCODE({"data": {f"k{n}": None for n in range(150_000)}})
    )
    yield write(
        "10,000 operations",
        "PATCH",
        one,
        lambda: ENCODE([{"op": "test", "path": "", "value": {"a": n}} for n in range(10_000)]),
        JSON_PATCH,
    )
    yield Case("plain REST", "an unknown kind", "GET", "/apiext/v1/nothing")


def large() -> Iterator[Case]:
    """Yield large but legitimate requests."""
    lists = f"/api/v1/namespaces/{NAMESPACE}-full/configmaps"

    def case(name: str, method: str, path: str, body: Callable[[], bytes] = bytes, **others: Any) -> Case:
        return Case("large", name, method, path, body, **others)

    yield case("list", "GET", lists)
    yield case("list, by label", "GET", f"{lists}?labelSelector=shard%3D3")
    yield case("Table", "GET", lists, accept=TABLE)
    yield case("Table with objects", "GET", f"{lists}?includeObject=Object", accept=TABLE)
    yield case("metadata", "GET", lists, accept=METADATA)
    yield case("page of 500", "GET", f"{lists}?limit=500")
    yield case("watch of all", "GET", f"{lists}?watch=1", is_stream=True)
    yield case("object of 3 MiB", "GET", f"{NAMESPACE_PATH}/configmaps/large")
    yield case("object of 3 MiB in a Table", "GET", f"{NAMESPACE_PATH}/configmaps/large", accept=TABLE)
    text = "x" * 2_900_000
    yield case(
        "update of 3 MiB",
        "PUT",
        f"{NAMESPACE_PATH}/configmaps/large",
        lambda: ENCODE({**new_object("large"), "data": {"a": text}}),
    )
    yield case(
        "patch of a large object",
        "PATCH",
        f"{NAMESPACE_PATH}/configmaps/large",
        lambda: b'{"data":{"b":"c"}}',
        content_type=MERGE_PATCH,
    )
    yield case(
        "Secret of 1 MiB",
        "POST",
        f"{NAMESPACE_PATH}/secrets{DRY}",
        lambda: ENCODE({**new_object("s"), "data": {"a": "QUJD" * 260_000}}),
    )
    endpoints = [{"addresses": [f"10.{n >> 8}.{n & 255}.1"], "conditions": {"ready": True}} for n in range(1_000)]
    piece = {
        **new_object("slice"),
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"port": 80, "name": "http"}],
    }
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices{DRY}"
    yield case("1,000 endpoints", "POST", slices, lambda: ENCODE(piece))
    yield case("OpenAPI v2", "GET", "/openapi/v2")
    yield case("OpenAPI v3 of a large definition", "GET", "/openapi/v3/apis/hostile.example/v1")
    yield case(
        "discovery", "GET", "/apis", accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    )
    widget = {"apiVersion": "hostile.example/v1", "kind": "Big", **new_object("a"), "spec": {"f1": {"a": "b"}}}
    yield case("object of a large definition", "POST", f"{CUSTOM}/bigs{DRY}", lambda: ENCODE(widget))
    plain = "/apiext/v1/configmaps"
    yield case("plain page of 500", "GET", f"{plain}?namespace={NAMESPACE}-full&limit=500")
    yield case("plain list, by label", "GET", f"{plain}?namespace={NAMESPACE}-full&filter=labels.shard%3D3")
    yield case("plain list, sorted", "GET", f"{plain}?namespace={NAMESPACE}-full&sort=-created,name")
    yield case("plain object of 3 MiB", "GET", f"{plain}/large?namespace={NAMESPACE}")


def hostile() -> Iterator[Case]:
    for part in (pods, rights, patches, bodies, custom_resources, definitions, queries, plain_rest):
        yield from part()
