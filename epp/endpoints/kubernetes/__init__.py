"""Endpoints from the Kubernetes API: raw JSON, list then watch, reads only."""
