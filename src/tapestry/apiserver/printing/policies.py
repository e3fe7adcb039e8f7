"""Who may do what and how much of it, in a table: roles, quotas, admission, priorities, certificates."""

from tapestry.apiserver.printing.prints import (
    AGE,
    BOOLEAN,
    CREATED,
    INTEGER,
    NAME,
    NONE,
    UNSET,
    Columns,
    Print,
    count,
    duration,
    of,
    path,
)
from tapestry.kube.conditions import find
from tapestry.kube.objects import Object, value_at


def quota_of(kind: str) -> Print:
    """What is used of what: of limits, or of all the rest."""

    def show(obj: Object) -> str:
        hard, used = (value_at(obj, "status", field, default={}) for field in ("hard", "used"))
        names = [each for each in sorted(hard) if each.startswith("limits.") is (kind == "Limit")]
        return ", ".join(f"{each}: {used.get(each, 0)}/{hard[each]}" for each in names)

    return Print(kind, of(show))


def role(binding: Object) -> str:
    return f"{binding['roleRef']['kind']}/{binding['roleRef']['name']}"


def subjects(kind: str) -> Print:
    """Those of a binding that are of a kind; an account is named with its namespace."""

    def show(obj: Object) -> str:
        those = [each for each in obj.get("subjects") or () if each.get("kind") == kind]
        return ", ".join("/".join(filter(None, (each.get("namespace"), each.get("name")))) for each in those)

    return Print(f"{kind}s", of(show), priority=1)


def request_state(obj: Object) -> str:
    """What became of a request for a certificate."""
    types = {each.get("type") for each in value_at(obj, "status", "conditions", default=[])}
    words = [next((each for each in ("Denied", "Approved") if each in types), "Pending")]
    words += ["Failed"] if "Failed" in types else []
    return ",".join([*words, *(["Issued"] if value_at(obj, "status", "certificate") else [])])


def requested_duration(obj: Object) -> str:
    seconds = value_at(obj, "spec", "expirationSeconds")
    return duration(seconds) if seconds is not None else NONE


def parameter_kind(obj: Object) -> str:
    found = value_at(obj, "spec", "paramKind")
    return f"{found.get('apiVersion', '')}/{found.get('kind', '')}" if found is not None else UNSET


def parameter(obj: Object) -> str:
    found = value_at(obj, "spec", "paramRef", default={})
    if found.get("name"):
        return f"{found.get('namespace') or '*'}/{found['name']}"
    return go_selector(found["selector"]) if found.get("selector") is not None else UNSET


def go_selector(spec: Object) -> str:
    """A selector as Go prints a value of its type, which is what Kubernetes shows here."""
    labels = "".join(f"{key}: {value}," for key, value in sorted((spec.get("matchLabels") or {}).items()))
    expressions = "".join(
        f"LabelSelectorRequirement{{Key:{each['key']},Operator:{each['operator']},"
        f"Values:[{' '.join(each.get('values') or ())}],}},"
        for each in spec.get("matchExpressions") or ()
    )
    expressions = f"[]LabelSelectorRequirement{{{expressions}}}"
    return f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:{expressions},}}"


def dangling(obj: Object) -> str:
    found = find(value_at(obj, "status", "conditions"), "Dangling")
    return str(found["status"]) if found is not None else "?"


QUEUING = ("spec", "limited", "limitResponse", "queuing")
WEBHOOKS = (NAME, Print("Webhooks", count("webhooks"), INTEGER), AGE)
BINDING = (NAME, Print("Role", of(role)), AGE, subjects("User"), subjects("Group"), subjects("ServiceAccount"))

COLUMNS: Columns = {
    "roles.rbac.authorization.k8s.io": (NAME, CREATED),
    "clusterroles.rbac.authorization.k8s.io": (NAME, CREATED),
    "rolebindings.rbac.authorization.k8s.io": BINDING,
    "clusterrolebindings.rbac.authorization.k8s.io": BINDING,
    "resourcequotas": (NAME, quota_of("Request"), quota_of("Limit"), AGE),
    "limitranges": (NAME, CREATED),
    "certificatesigningrequests.certificates.k8s.io": (
        NAME,
        AGE,
        Print("SignerName", path("spec", "signerName", default=NONE)),
        Print("Requestor", path("spec", "username")),
        Print("RequestedDuration", of(requested_duration)),
        Print("Condition", of(request_state)),
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": WEBHOOKS,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": WEBHOOKS,
    "validatingadmissionpolicies.admissionregistration.k8s.io": (
        NAME,
        Print("Validations", count("spec", "validations"), INTEGER),
        Print("ParamKind", of(parameter_kind)),
        AGE,
    ),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": (
        NAME,
        Print("PolicyName", path("spec", "policyName")),
        Print("ParamRef", of(parameter)),
        AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        Print("Value", path("value", default=0), INTEGER),
        Print("Global-Default", path("globalDefault", default=False), BOOLEAN),
        AGE,
        Print("PreemptionPolicy", path("preemptionPolicy")),
    ),
    "flowschemas.flowcontrol.apiserver.k8s.io": (
        NAME,
        Print("PriorityLevel", path("spec", "priorityLevelConfiguration", "name")),
        Print("MatchingPrecedence", path("spec", "matchingPrecedence", default=0)),
        Print("DistinguisherMethod", path("spec", "distinguisherMethod", "type", default=NONE)),
        AGE,
        Print("MissingPL", of(dangling)),
    ),
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": (
        NAME,
        Print("Type", path("spec", "type")),
        Print("NominalConcurrencyShares", path("spec", "limited", "nominalConcurrencyShares", default=NONE)),
        Print("Queues", path(*QUEUING, "queues", default=NONE)),
        Print("HandSize", path(*QUEUING, "handSize", default=NONE)),
        Print("QueueLengthLimit", path(*QUEUING, "queueLengthLimit", default=NONE)),
        AGE,
    ),
}
