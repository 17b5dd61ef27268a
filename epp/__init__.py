"""An Endpoint Picker (EPP) for the Kubernetes Gateway API Inference Extension."""

__version__ = "0.1.0"
