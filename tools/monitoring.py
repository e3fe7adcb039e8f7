"""Files for Prometheus and Grafana: alerting rules, a dashboard, and the page that describes the alerts."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

RULES = "charts/tapestry/files/rules.yaml"
DASHBOARD = "charts/tapestry/files/dashboard.json"
PAGE = "docs/guides/alerts.md"
NOTE = "Made by tools/monitoring.py; `make reference` makes it again."
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
METRIC = re.compile(r"\b(?:tapestry|apiserver)_[a-z_]+")
WIDTH, HEIGHT, COLUMNS = 8, 8, 24


@dataclass(frozen=True)
class Alert:
    name: str
    expression: str
    duration: str
    """How long the expression must hold, as Prometheus writes it."""
    severity: str
    summary: str
    """One line, with the labels of the alert as templates."""
    meaning: str
    actions: list[str]
    """Steps in Markdown, the first one first."""


ALERTS = [Alert(**fields) for fields in yaml.safe_load((Path(__file__).parent / "prometheus/alerts.yaml").read_text())]


@dataclass(frozen=True)
class Panel:
    title: str
    queries: tuple[tuple[str, str], ...]
    """Pairs of an expression and its legend."""
    unit: str = "short"
    kind: str = "timeseries"


def quantile(metric: str, labels: str, by: str) -> str:
    """Return the 99th percentile of a histogram."""
    return f"histogram_quantile(0.99, sum by (le, {by}) (rate({metric}_bucket{labels}[$__rate_interval])))"


def rate(metric: str, by: str, labels: str = "") -> str:
    expression = f"rate({metric}{labels}[$__rate_interval])"
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"


def largest(expression: str) -> str:
    """Return the series with the largest values: there may be a thousand planes."""
    return f"topk(10, {expression})"


BINDING = '{binding=~"$binding"}'
HISTORY = "tapestry_plane_history_bytes"
ROWS: dict[str, tuple[Panel, ...]] = {
    "Overview": (
        Panel("Bindings by phase", (("max by (phase) (tapestry_bindings)", "{{phase}}"),), kind="stat"),
        Panel("Leaders", (("sum by (election) (tapestry_is_leader)", "{{election}}"),), kind="stat"),
        Panel(
            "Versions",
            (("count by (component, version) (tapestry_build_info)", "{{component}} {{version}}"),),
            kind="stat",
        ),
        Panel(
            "Seconds since the last answer of each cluster",
            (
                (
                    f"time() - max by (binding) (tapestry_physical_cluster_last_seen_timestamp_seconds{BINDING})",
                    "{{binding}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Unreachable clusters",
            ((f"max by (binding) (tapestry_physical_cluster_unreachable{BINDING})", "{{binding}}"),),
        ),
        Panel("Forced removals with leftovers", (("max(tapestry_leftovers)", "bindings"),), kind="stat"),
    ),
    "Capacity": (
        Panel(
            "CPU, leased and used",
            (
                ('max by (binding) (tapestry_leased{binding=~"$binding", resource="cpu"})', "{{binding}} leased"),
                ('max by (binding) (tapestry_used{binding=~"$binding", resource="cpu"})', "{{binding}} used"),
            ),
        ),
        Panel(
            "Memory, leased and used",
            (
                ('max by (binding) (tapestry_leased{binding=~"$binding", resource="memory"})', "{{binding}} leased"),
                ('max by (binding) (tapestry_used{binding=~"$binding", resource="memory"})', "{{binding}} used"),
            ),
            "bytes",
        ),
        Panel(
            "Use of each leased resource",
            (
                (
                    f"max by (binding, resource) (tapestry_used{BINDING}) "
                    f"/ max by (binding, resource) (tapestry_leased{BINDING} > 0)",
                    "{{binding}} {{resource}}",
                ),
            ),
            "percentunit",
        ),
        Panel("Virtual nodes", ((f"max by (binding) (tapestry_virtual_nodes{BINDING})", "{{binding}}"),)),
        Panel("Pods on virtual nodes", ((f"max by (binding) (tapestry_virtual_pods{BINDING})", "{{binding}}"),)),
        Panel(
            "Pods by outcome",
            ((rate("tapestry_pods_total", "binding, outcome, reason", BINDING), "{{binding}} {{outcome}} {{reason}}"),),
            "ops",
        ),
    ),
    "Sync": (
        Panel(
            "Time to sync down: pods (99th percentile)",
            ((quantile("tapestry_sync_seconds", '{controller="pods"}', "pod"), "{{pod}}"),),
            "s",
        ),
        Panel(
            "Time to sync up: status of pods, and nodes (99th percentile)",
            (
                (
                    quantile("tapestry_sync_seconds", '{controller=~"pod-status|nodes"}', "controller, pod"),
                    "{{controller}} {{pod}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Duration of passes (99th percentile)",
            ((quantile("tapestry_reconcile_seconds", "", "controller, outcome"), "{{controller}} {{outcome}}"),),
            "s",
        ),
        Panel(
            "Inconsistencies",
            ((f"max by (binding, invariant) (tapestry_findings{BINDING})", "{{binding}} {{invariant}}"),),
        ),
        Panel(
            "Repairs",
            ((rate("tapestry_mended_total", "binding, invariant", BINDING), "{{binding}} {{invariant}}"),),
            "ops",
        ),
        Panel(
            "Errors and retries",
            (
                (rate("tapestry_reconcile_errors_total", "controller, reason"), "{{controller}} {{reason}}"),
                (rate("tapestry_reconcile_retries_total", "controller, reason"), "{{controller}} {{reason}} retried"),
            ),
            "ops",
        ),
        Panel("Keys in queues", (("sum by (controller) (tapestry_queue_depth)", "{{controller}}"),)),
        Panel("Age of the first key", (("max by (controller) (tapestry_queue_age_seconds)", "{{controller}}"),), "s"),
        Panel(
            "Elections", ((rate("tapestry_elections_total", "election, outcome"), "{{election}} {{outcome}}"),), "ops"
        ),
    ),
    "API servers": (
        Panel("Requests by code", ((rate("tapestry_client_requests_total", "code"), "{{code}}"),), "reqps"),
        Panel(
            "Requests by verb and resource",
            ((rate("tapestry_client_requests_total", "verb, resource"), "{{verb}} {{resource}}"),),
            "reqps",
        ),
        Panel(
            "Bytes sent and received",
            (
                (rate("tapestry_client_sent_bytes_total", "pod"), "{{pod}} sent"),
                (rate("tapestry_client_received_bytes_total", "pod"), "{{pod}} received"),
            ),
            "Bps",
        ),
        Panel(
            "Restarts of watches",
            ((rate("tapestry_watch_restarts_total", "resource, reason"), "{{resource}} {{reason}}"),),
            "ops",
        ),
        Panel(
            "Cached objects", (("sum by (resource, informer) (tapestry_cached_objects)", "{{resource}} {{informer}}"),)
        ),
        Panel("Logs of pods being read", (("sum by (pod) (tapestry_logs_read)", "{{pod}}"),)),
        Panel(
            "Sessions of exec, attach and port-forward on leased pods",
            (("sum by (subresource) (tapestry_stream_sessions)", "{{subresource}}"),),
        ),
        Panel(
            "Remaining life of the serving certificates of virtual nodes",
            (("min by (pod) (tapestry_kubelet_certificate_expiration_timestamp_seconds) - time()", "{{pod}}"),),
            "s",
        ),
        Panel(
            "Sessions of exec, attach and port-forward in local clusters",
            ((rate("tapestry_kubelet_sessions_total", "verb, protocol"), "{{verb}} {{protocol}}"),),
            "ops",
        ),
    ),
    "tapestry apiserver": (
        Panel(
            "Requests", ((rate("apiserver_request_total", "job, verb, code"), "{{job}} {{verb}} {{code}}"),), "reqps"
        ),
        Panel(
            "Duration of requests (99th percentile)",
            ((quantile("apiserver_request_duration_seconds", '{verb!="WATCH"}', "job, verb"), "{{job}} {{verb}}"),),
            "s",
        ),
        Panel(
            "Size of responses (99th percentile)",
            ((quantile("apiserver_response_sizes", "", "job, resource"), "{{job}} {{resource}}"),),
            "bytes",
        ),
        Panel(
            "Watches, sessions and requests in flight",
            (
                ("sum by (job) (apiserver_longrunning_requests)", "{{job}} watches and sessions"),
                (
                    "sum by (job, request_kind) (apiserver_current_inflight_requests)",
                    "{{job}} requests {{request_kind}}",
                ),
            ),
        ),
        Panel(
            "Stored objects",
            ((largest("max by (job, resource) (apiserver_storage_objects)"), "{{job}} {{resource}}"),),
        ),
        Panel(
            "Requests that were rejected or aborted",
            ((rate("apiserver_request_terminations_total", "job, verb, code"), "{{job}} {{verb}} {{code}}"),),
            "reqps",
        ),
        Panel("Connections", (("sum by (job, state) (apiserver_connections)", "{{job}} {{state}}"),)),
        Panel(
            "Connections that were refused",
            ((rate("apiserver_connections_refused_total", "job, reason"), "{{job}} {{reason}}"),),
            "ops",
        ),
        Panel("Audit events", ((rate("apiserver_audit_event_total", "job"), "{{job}}"),), "ops"),
    ),
    "Planes": (
        Panel(
            "CPU of the busiest planes", ((largest(rate("tapestry_plane_cpu_seconds_total", "plane")), "{{plane}}"),)
        ),
        Panel(
            "Requests by class", ((rate("tapestry_plane_requests_total", "verb, code"), "{{verb}} {{code}}"),), "reqps"
        ),
        Panel(
            "Planes with most requests over a limit",
            ((largest(rate("tapestry_plane_rejected_total", "plane")), "{{plane}}"),),
            "reqps",
        ),
        Panel("Largest planes: objects", ((largest("sum by (plane) (tapestry_plane_objects)"), "{{plane}}"),)),
        Panel(
            "Largest planes: objects and history",
            ((largest(f"sum by (plane) (tapestry_plane_object_bytes + {HISTORY})"), "{{plane}}"),),
            "bytes",
        ),
        Panel(
            "Watches and requests in flight",
            (
                (largest("sum by (plane) (tapestry_plane_watches)"), "{{plane}} watches"),
                (largest("sum by (plane) (tapestry_plane_requests_in_flight)"), "{{plane}} requests"),
            ),
        ),
        Panel("Changes", ((largest("sum by (plane) (deriv(tapestry_plane_revision[5m]))"), "{{plane}}"),), "ops"),
        Panel(
            "Tenants with most DNS queries",
            (
                (largest(rate("tapestry_dns_queries_total", "plane")), "{{plane}}"),
                (largest(rate("tapestry_dns_forwarded_total", "plane")), "{{plane}} forwarded"),
            ),
            "reqps",
        ),
        Panel(
            "DNS queries that were limited or failed",
            (
                (largest(rate("tapestry_dns_limited_total", "plane")), "{{plane}} limited"),
                (largest(rate("tapestry_dns_forwarding_failures_total", "plane")), "{{plane}} failed"),
            ),
            "reqps",
        ),
    ),
    "Host clusters and tenants": (
        Panel("Reachable host clusters", (("max by (host) (tapestry_host_reachable)", "{{host}}"),)),
        Panel(
            "Requests of tenants, as part of what is leased",
            (
                (
                    "max by (host, resource) (tapestry_host_requested)"
                    " / (max by (host, resource) (tapestry_host_leased) > 0)",
                    "{{host}} {{resource}}",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Longest sync lags",
            (
                (
                    largest(
                        "max by (plane) (tapestry_tenant_sync_lag_seconds) * on (plane) group_left (namespace, name)"
                        " max by (namespace, name, plane) (tapestry_vclusters_plane_info)"
                    ),
                    "{{namespace}}/{{name}}",
                ),
            ),
            "s",
        ),
    ),
    "Lifecycle service": (
        Panel(
            "Requests by method and code",
            ((rate("tapestry_vclusters_requests_total", "method, code"), "{{method}} {{code}}"),),
            "reqps",
        ),
        Panel(
            "Virtual clusters",
            (("max by (phase, host) (tapestry_vclusters)", "{{phase}} {{host}}"),),
        ),
        Panel(
            "Operations",
            ((rate("tapestry_vclusters_operation_seconds_count", "verb, result"), "{{verb}} {{result}}"),),
            "ops",
        ),
        Panel(
            "Duration of operations (99th percentile)",
            ((quantile("tapestry_vclusters_operation_seconds", "", "verb"), "{{verb}}"),),
            "s",
        ),
        Panel(
            "Steps that failed",
            ((rate("tapestry_vclusters_step_failures_total", "verb, step"), "{{verb}} {{step}}"),),
            "ops",
        ),
        Panel(
            "Use of quotas",
            (
                (
                    "max by (project, resource) (tapestry_vclusters_quota_used)"
                    " / max by (project, resource) (tapestry_vclusters_quota_limit)",
                    "{{project}} {{resource}}",
                ),
            ),
            "percentunit",
        ),
    ),
    "Processes": (
        Panel(
            "Delay of the event loop (99th percentile)",
            ((quantile("tapestry_event_loop_lag_seconds", "", "pod"), "{{pod}}"),),
            "s",
        ),
        Panel(
            "Events that were not recorded",
            (
                (rate("tapestry_events_dropped_total", "why"), "{{why}}"),
                (rate("tapestry_twin_events_untold_total", "binding", BINDING), "{{binding}}: rate limit of twins"),
            ),
            "ops",
        ),
        Panel("Lost audit records", ((rate("tapestry_audit_dropped_total", "pod"), "{{pod}}"),), "ops"),
    ),
}


def monitored_metrics() -> set[str]:
    """Return the names in all panels and alerts, as samples have them."""
    expressions = [query for panels in ROWS.values() for panel in panels for query, _ in panel.queries]
    expressions += [alert.expression for alert in ALERTS]
    return {name for expression in expressions for name in METRIC.findall(expression)}


def rules_file() -> str:
    """Return the alerting rules as a file that Prometheus loads."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.duration,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "description": alert.meaning,
                "runbook": f"{PAGE}#{alert.name.lower()}",
            },
        }
        for alert in ALERTS
    ]
    text = yaml.safe_dump({"groups": [{"name": "tapestry", "rules": rules}]}, sort_keys=False, width=1000)
    return f"# {NOTE}\n{text}"


def dashboard_file() -> str:
    """Return the dashboard as a file that Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in ROWS.items():
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row, "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top}}
        )
        top += 1
        for index, panel in enumerate(members):
            line, column = divmod(index, COLUMNS // WIDTH)
            position = {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": top + line * HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": position, **panel_model(panel)})
        top += -(-len(members) * WIDTH // COLUMNS) * HEIGHT
    dashboard = {
        "uid": "tapestry",
        "title": "Tapestry",
        "description": NOTE,
        "tags": ["tapestry", "kubernetes"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [datasource_variable(), binding_variable()]},
        "panels": panels,
    }
    return json.dumps(dashboard, indent=2) + "\n"


def panel_model(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": SOURCE}
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def binding_variable() -> dict[str, Any]:
    return {
        "name": "binding",
        "label": "Binding",
        "type": "query",
        "datasource": SOURCE,
        "query": "label_values(tapestry_virtual_nodes, binding)",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def alerts_page() -> str:
    introduction = (
        "Each alert has a section here, which its annotation `runbook` names as a path in this repository.\n"
        "[Monitoring](monitoring.md) describes how to load the rules.\n"
        "`critical` needs an action now, `warning` today, and `info` when there is time."
    )
    table = ["| alert | severity | fires when |", "|---|---|---|"]
    table += [
        f"| [{alert.name}](#{alert.name.lower()}) | {alert.severity} | {without_templates(alert.summary)} |"
        for alert in ALERTS
    ]
    sections = [section(alert) for alert in ALERTS]
    return "\n\n".join(["# Alerts", f"<!-- {NOTE} -->", introduction, "\n".join(table), *sections]) + "\n"


def without_templates(summary: str) -> str:
    """Return a summary with the names of labels instead of their templates."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: match[1].upper(), summary)
    return re.sub(r"\{\{ \$value.*?\}\}", "N", text)


def section(alert: Alert) -> str:
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(alert.actions, 1))
    delay = "at once" if alert.duration == "0m" else f"after {alert.duration}"
    condition = f"```text\n{alert.expression}\n```"
    return "\n\n".join([f"## {alert.name}", alert.meaning, condition, f"It fires {delay}. What to do:", steps])


def files() -> dict[str, str]:
    """Return the text of each generated file by its path in the repository."""
    return {RULES: rules_file(), DASHBOARD: dashboard_file(), PAGE: alerts_page()}
