"""Default metric and behavior of a HorizontalPodAutoscaler."""

from tapestry.kube.objects import Object

DEFAULT_UTILIZATION = 80
"""Target of an autoscaler without metrics, in percent of the CPU requests."""
SCALE_UP_RULES: Object = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
SCALE_DOWN_RULES: Object = {
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}


def cpu_metric(percent: int) -> Object:
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


def default_behavior(behavior: Object) -> Object:
    """Return the behavior of an autoscaler with all rules. The controller sets the window of `scaleDown`."""

    def with_rules(defaults: Object, rules: Object | None) -> Object:
        return {**defaults, **{key: value for key, value in (rules or {}).items() if value is not None}}

    return {
        "scaleUp": with_rules(SCALE_UP_RULES, behavior.get("scaleUp")),
        "scaleDown": with_rules(SCALE_DOWN_RULES, behavior.get("scaleDown")),
    }
