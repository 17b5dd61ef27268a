"""Where the rules come from."""

GATEWAY_API = "Gateway API v1"
GIE = "Gateway API Inference Extension v1, InferencePool"
PROTOCOL = "GIE proposal 004, Endpoint Picker Protocol 1.0.0"
KUBERNETES = "Kubernetes API v1"
DYNAMO = "NVIDIA Dynamo, Gateway API routing"
AICR = "NVIDIA AICR, constraint syntax"
OWN = "epp: own rule"
SUITE = "GIE conformance suite"


def observed(what: str) -> str:
    """A rule learnt from what a gateway or picker does."""
    return f"observed: {what}"
