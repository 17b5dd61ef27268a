"""What lies below the chain, and which AICR check judges it; we only record what the API server shows."""

from epp.readiness.snapshot.document import Platform

_NOT_OURS = "not judged here: AICR's check"
COVERED = (
    ("resource.k8s.io", "dynamic resource allocation", "dra-support"),
    ("nvidia.com", "GPU operator", "operator-health, gpu-operator-health, gpu-operator-version"),
    ("scheduling.run.ai", "gang scheduler (KAI)", "gang-scheduling"),
    ("custom.metrics.k8s.io", "custom metrics for autoscaling", "pod-autoscaling"),
    ("monitoring.coreos.com", "Prometheus", "accelerator-metrics, ai-service-metrics"),
)
"""API group, what it shows, and AICR's checks of it."""


def platform_lines(platform: Platform) -> tuple[str, ...]:
    """One line for each part of the platform."""
    if platform.api_groups is None:
        return (f"platform: the API groups could not be read; {_NOT_OURS}s cover GPUs, DRA, scheduler and Prometheus",)
    return tuple(
        f"platform: {what}: {_served(platform, group)}; {_NOT_OURS} {checks}" for group, what, checks in COVERED
    )


def _served(platform: Platform, group: str) -> str:
    versions = (platform.api_groups or {}).get(group)
    return f"{group} {', '.join(versions)} is served" if versions else f"{group} is not served"
