"""HorizontalPodAutoscaler controller: scales workloads by the resource usage of their pods."""
