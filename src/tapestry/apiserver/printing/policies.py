"""Table columns of roles, quotas, admission policies, webhooks, priorities and certificate requests."""

from tapestry.apiserver.printing.table_columns import (
    AGE,
    BOOLEAN,
    CREATED,
    INTEGER,
    NAME,
    NONE,
    UNSET,
    ColumnsByResource,
    TableColumn,
    computed_cell,
    count_cell,
    human_duration,
    value_cell,
)
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, value_at


def quota_column(kind: str) -> TableColumn:
    """Column with used and hard amounts: of `limits.*` for the kind `Limit`, else of everything else."""

    def usage(obj: Object) -> str:
        hard, used = (value_at(obj, "status", field, default={}) for field in ("hard", "used"))
        names = [each for each in sorted(hard) if each.startswith("limits.") is (kind == "Limit")]
        return ", ".join(f"{each}: {used.get(each, 0)}/{hard[each]}" for each in names)

    return TableColumn(kind, computed_cell(usage))


def role_reference(binding: Object) -> str:
    return f"{binding['roleRef']['kind']}/{binding['roleRef']['name']}"


def subjects_column(kind: str) -> TableColumn:
    """Column with the subjects of one kind in a binding. Service accounts include their namespace."""

    def subjects(obj: Object) -> str:
        matching = [each for each in obj.get("subjects") or () if each.get("kind") == kind]
        return ", ".join("/".join(filter(None, (each.get("namespace"), each.get("name")))) for each in matching)

    return TableColumn(f"{kind}s", computed_cell(subjects), priority=1)


def signing_request_condition(obj: Object) -> str:
    types = {each.get("type") for each in value_at(obj, "status", "conditions", default=[])}
    states = [next((each for each in ("Denied", "Approved") if each in types), "Pending")]
    states += ["Failed"] if "Failed" in types else []
    return ",".join([*states, *(["Issued"] if value_at(obj, "status", "certificate") else [])])


def requested_duration(obj: Object) -> str:
    seconds = value_at(obj, "spec", "expirationSeconds")
    return human_duration(seconds) if seconds is not None else NONE


def parameter_kind(obj: Object) -> str:
    param_kind = value_at(obj, "spec", "paramKind")
    return f"{param_kind.get('apiVersion', '')}/{param_kind.get('kind', '')}" if param_kind is not None else UNSET


def parameter_reference(obj: Object) -> str:
    param_ref = value_at(obj, "spec", "paramRef", default={})
    if param_ref.get("name"):
        return f"{param_ref.get('namespace') or '*'}/{param_ref['name']}"
    return go_selector_text(param_ref["selector"]) if param_ref.get("selector") is not None else UNSET


def go_selector_text(spec: Object) -> str:
    """Return a selector as Go prints the struct, which is what kube-apiserver shows here."""
    labels = "".join(f"{key}: {value}," for key, value in sorted((spec.get("matchLabels") or {}).items()))
    expressions = "".join(
        f"LabelSelectorRequirement{{Key:{each['key']},Operator:{each['operator']},"
        f"Values:[{' '.join(each.get('values') or ())}],}},"
        for each in spec.get("matchExpressions") or ()
    )
    expressions = f"[]LabelSelectorRequirement{{{expressions}}}"
    return f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:{expressions},}}"


def dangling_status(obj: Object) -> str:
    condition = find_condition(value_at(obj, "status", "conditions"), "Dangling")
    return str(condition["status"]) if condition is not None else "?"


QUEUING_PATH = ("spec", "limited", "limitResponse", "queuing")
WEBHOOK_COLUMNS = (NAME, TableColumn("Webhooks", count_cell("webhooks"), INTEGER), AGE)
BINDING_COLUMNS = (
    NAME,
    TableColumn("Role", computed_cell(role_reference)),
    AGE,
    subjects_column("User"),
    subjects_column("Group"),
    subjects_column("ServiceAccount"),
)

COLUMNS: ColumnsByResource = {
    "roles.rbac.authorization.k8s.io": (NAME, CREATED),
    "clusterroles.rbac.authorization.k8s.io": (NAME, CREATED),
    "rolebindings.rbac.authorization.k8s.io": BINDING_COLUMNS,
    "clusterrolebindings.rbac.authorization.k8s.io": BINDING_COLUMNS,
    "resourcequotas": (NAME, quota_column("Request"), quota_column("Limit"), AGE),
    "limitranges": (NAME, CREATED),
    "certificatesigningrequests.certificates.k8s.io": (
        NAME,
        AGE,
        TableColumn("SignerName", value_cell("spec", "signerName", default=NONE)),
        TableColumn("Requestor", value_cell("spec", "username")),
        TableColumn("RequestedDuration", computed_cell(requested_duration)),
        TableColumn("Condition", computed_cell(signing_request_condition)),
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": WEBHOOK_COLUMNS,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": WEBHOOK_COLUMNS,
    "validatingadmissionpolicies.admissionregistration.k8s.io": (
        NAME,
        TableColumn("Validations", count_cell("spec", "validations"), INTEGER),
        TableColumn("ParamKind", computed_cell(parameter_kind)),
        AGE,
    ),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": (
        NAME,
        TableColumn("PolicyName", value_cell("spec", "policyName")),
        TableColumn("ParamRef", computed_cell(parameter_reference)),
        AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        TableColumn("Value", value_cell("value", default=0), INTEGER),
        TableColumn("Global-Default", value_cell("globalDefault", default=False), BOOLEAN),
        AGE,
        TableColumn("PreemptionPolicy", value_cell("preemptionPolicy")),
    ),
    "flowschemas.flowcontrol.apiserver.k8s.io": (
        NAME,
        TableColumn("PriorityLevel", value_cell("spec", "priorityLevelConfiguration", "name")),
        TableColumn("MatchingPrecedence", value_cell("spec", "matchingPrecedence", default=0)),
        TableColumn("DistinguisherMethod", value_cell("spec", "distinguisherMethod", "type", default=NONE)),
        AGE,
        TableColumn("MissingPL", computed_cell(dangling_status)),
    ),
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": (
        NAME,
        TableColumn("Type", value_cell("spec", "type")),
        TableColumn(
            "NominalConcurrencyShares", value_cell("spec", "limited", "nominalConcurrencyShares", default=NONE)
        ),
        TableColumn("Queues", value_cell(*QUEUING_PATH, "queues", default=NONE)),
        TableColumn("HandSize", value_cell(*QUEUING_PATH, "handSize", default=NONE)),
        TableColumn("QueueLengthLimit", value_cell(*QUEUING_PATH, "queueLengthLimit", default=NONE)),
        AGE,
    ),
}
