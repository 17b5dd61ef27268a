"""ext_proc streams over an HTTP/2 server of our own: frames -> connection -> streams -> gRPC calls, on asyncio.

`connection.py` is sans-IO: bytes in, calls to receivers and bytes out. `server.py` gives it sockets and time.
"""
