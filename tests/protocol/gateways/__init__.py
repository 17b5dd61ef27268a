"""Each gateway's own message shapes, played against the real server."""
