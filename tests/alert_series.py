"""Time series of a healthy installation and of the fault of each alert, for tests of the alerting rules.

Names and labels are those of real processes (`test_alert_series.py`), with the label `pod` that Prometheus adds.  The
values are those of one sample per minute, as promtool writes them: START+STEPxCOUNT.
"""

LAG = 'tapestry_event_loop_lag_seconds_bucket{pod="m-1", le="%s"}'
SYNC = 'tapestry_sync_seconds_bucket{controller="pods", le="%s"}'
HEALTHY = {
    'tapestry_build_info{component="tapestry-manager", version="1"}': "1x1600",
    'tapestry_is_leader{election="tapestry-manager", pod="m-1"}': "1x1600",
    'tapestry_is_leader{election="tapestry-manager", pod="m-2"}': "0x1600",
    'tapestry_elections_total{election="tapestry-manager", outcome="won"}': "1x1600",
    'tapestry_physical_cluster_unreachable{binding="east"}': "0x1600",
    'tapestry_physical_cluster_last_seen_timestamp_seconds{binding="east"}': "0+60x1600",
    'tapestry_bindings{phase="Failed"}': "0x1600",
    "tapestry_leftovers": "0x1600",
    'tapestry_findings{binding="east", invariant="Twins"}': "0x1600",
    'tapestry_reconcile_errors_total{controller="pods", reason="TransportError"}': "0+1x1600",
    'tapestry_reconcile_seconds_count{controller="pods", outcome="ok"}': "0+100x1600",
    'tapestry_queue_age_seconds{controller="pods", pod="s-1"}': "1x1600",
    SYNC % "1.0": "0+100x1600",
    SYNC % "60.0": "0+100x1600",
    SYNC % "+Inf": "0+100x1600",
    LAG % "0.1": "0+100x1600",
    LAG % "5.0": "0+100x1600",
    LAG % "+Inf": "0+100x1600",
    'tapestry_watch_restarts_total{resource="pods", reason="TransportError", pod="s-1"}': "0+1x1600",
    'tapestry_client_requests_total{verb="create", resource="pods", code="201", pod="s-1"}': "0+100x1600",
    'tapestry_client_requests_total{verb="get", resource="configmaps", code="404", pod="s-1"}': "0+50x1600",
    'tapestry_client_requests_total{verb="create", resource="pods", code="TransportError", pod="s-1"}': "0+1x1600",
    'tapestry_pods_total{binding="east", outcome="mapped", reason=""}': "0+10x1600",
    'tapestry_pods_total{binding="east", outcome="failed", reason="Reclaimed"}': "0+9x1600",
    'tapestry_leased{binding="east", resource="cpu"}': "10x1600",
    'tapestry_used{binding="east", resource="cpu"}': "9x1600",
    'tapestry_audit_dropped_total{pod="m-1"}': "0x1600",
    'tapestry_tenant_sync_lag_seconds{plane="p", host="east"}': "1x1600",
}

FAULTS: list[tuple[str, dict[str, str | None]]] = [
    ("TapestryManagerAbsent", {'tapestry_build_info{component="tapestry-manager", version="1"}': None}),
    ("TapestryNoLeader", {'tapestry_is_leader{election="tapestry-manager", pod="m-1"}': "1x60 0x1540"}),
    ("TapestrySeveralLeaders", {'tapestry_is_leader{election="tapestry-manager", pod="m-2"}': "0x60 1x1540"}),
    (
        "TapestryElectionsUnstable",
        {'tapestry_elections_total{election="tapestry-manager", outcome="lost"}': "0+1x1600"},
    ),
    ("TapestryClusterUnreachable", {'tapestry_physical_cluster_unreachable{binding="east"}': "0x60 1x1540"}),
    (
        "TapestryClusterSilent",
        {'tapestry_physical_cluster_last_seen_timestamp_seconds{binding="east"}': "0+60x60 3600x1540"},
    ),
    ("TapestryBindingsFailed", {'tapestry_bindings{phase="Failed"}': "0x60 1x1540"}),
    ("TapestryLeftovers", {"tapestry_leftovers": "1x1600"}),
    ("TapestryInconsistent", {'tapestry_findings{binding="east", invariant="Twins"}': "0x60 2x1540"}),
    ("TapestryRepairsFrequent", {'tapestry_mended_total{binding="east", invariant="Orphans"}': "0+1x1600"}),
    (
        "TapestryReconcileErrors",
        {'tapestry_reconcile_errors_total{controller="pods", reason="TransportError"}': "0+50x1600"},
    ),
    ("TapestryQueueStuck", {'tapestry_queue_age_seconds{controller="pods", pod="s-1"}': "0+60x1600"}),
    ("TapestrySyncSlow", {SYNC % "1.0": "0+10x1600"}),
    ("TapestryTenantSyncLags", {'tapestry_tenant_sync_lag_seconds{plane="p", host="east"}': "0+60x1600"}),
    ("TapestryEventLoopBlocked", {LAG % "0.1": "0+10x1600"}),
    (
        "TapestryWatchesRestart",
        {'tapestry_watch_restarts_total{resource="pods", reason="TransportError", pod="s-1"}': "0+30x1600"},
    ),
    (
        "TapestryRequestsFail",
        {'tapestry_client_requests_total{verb="create", resource="pods", code="429", pod="s-1"}': "0+100x1600"},
    ),
    (
        "TapestryPodsRejected",
        {'tapestry_pods_total{binding="east", outcome="refused", reason="PodSecurity"}': "0+10x1600"},
    ),
    ("TapestryLeaseExceeded", {'tapestry_used{binding="east", resource="cpu"}': "11x1600"}),
    ("TapestryEventsLost", {'tapestry_events_dropped_total{why="buffer full"}': "0+10x1600"}),
    ("TapestryEventsLost", {'tapestry_twin_events_untold_total{binding="east"}': "0+10x1600"}),
    ("TapestryAuditRecordsLost", {'tapestry_audit_dropped_total{pod="m-1"}': "0+1x1600"}),
    ("TapestryVersionsDiffer", {'tapestry_build_info{component="syncer", version="2"}': "1x1600"}),
]
