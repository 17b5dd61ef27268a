"""The HTTP/2 server in plain Python: frames, connection, calls, and what hostile peers do to it."""
