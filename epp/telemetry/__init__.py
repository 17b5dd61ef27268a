"""Metrics, logs and traces; a leaf that every part may use."""
