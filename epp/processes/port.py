"""The port that all processes share: held by the parent, listened on by the children (SO_REUSEPORT)."""

import socket


class SharedPort:
    """Holds a TCP port without listening, so that it stays ours while processes come and go."""

    def __init__(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError when somebody else has it."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if port:
            with socket.socket(family) as probe:  # SO_REUSEPORT alone would share it with any program of this user
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                probe.listen(1)
        self._socket = socket.socket(family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind((host, port))
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Let it go."""
        self._socket.close()
