"""A simulated worker: HTTP, metrics and KV events, with a cache that really decides."""
