"""The ext_proc protocol: what the gateway sends, what it is answered, and the path of a request between the two."""
