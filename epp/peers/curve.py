"""CURVE between replicas: whoever has the shared key may speak and listen, nobody else.

The key is any text of at least 16 bytes, mounted from a Secret. One key pair is derived from it and is both sides'
long-term key; each connection has fresh keys of its own (CurveZMQ, ZeroMQ RFC 26), so a recording cannot be read
later by whoever gets the Secret then. Authentication is ZAP (ZeroMQ RFC 27).
"""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import zmq
from zmq.utils import z85

from epp.kvcache.drain import Drain
from epp.settings import SettingsError

LEAST_KEY_BYTES = 16

Context = zmq.Context[zmq.Socket[bytes]]


@dataclass(frozen=True, slots=True, repr=False)
class CurveKey:
    """The key pair that all replicas share, in Z85."""

    public: bytes
    secret: bytes

    @staticmethod
    def read(file: Path) -> "CurveKey":
        """The pair that the text in `file` stands for. Raises SettingsError."""
        try:
            text = file.read_bytes().strip()
        except OSError as error:
            raise SettingsError(f"EPP_PEER_KEY_FILE={str(file)!r}: {error.strerror}") from None
        if len(text) < LEAST_KEY_BYTES:
            raise SettingsError(
                f"EPP_PEER_KEY_FILE={str(file)!r}: expected at least {LEAST_KEY_BYTES} bytes, found {len(text)}"
            )
        secret = z85.encode(blake2b(text, digest_size=32, person=b"epp peers").digest())
        return CurveKey(zmq.curve_public(secret), secret)

    @property
    def prefix_secret(self) -> bytes:
        """For the prefix keys of all replicas that have this key."""
        return blake2b(self.secret, digest_size=32, person=b"prefix keys").digest()

    def serve(self, socket: zmq.Socket[bytes]) -> None:
        """Take only connections from who has the key; an `Authenticator` must run in the socket's context."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, b"peers")

    def connect(self, socket: zmq.Socket[bytes]) -> None:
        """Connect only to who has the key."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)


class Authenticator:
    """Answers ZeroMQ's questions about who connects: the one known key, or no."""

    def __init__(self, key: CurveKey, context: Context, drain: Drain) -> None:
        self._known = z85.decode(key.public)
        self._drain = drain
        self.refused = 0
        """Connections with a key that is not ours."""
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("inproc://zeromq.zap.01")
        drain.watch(self._socket, self._work)

    def stop(self) -> None:
        """Answer no more; sockets that serve the key take nobody then."""
        self._drain.forget(self._socket)
        self._socket.close(linger=0)

    def _work(self) -> bool:
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        request = frames[1] if len(frames) > 1 else b""
        known = len(frames) == 7 and frames[5] == b"CURVE" and frames[6] == self._known
        self.refused += not known
        code, text = (b"200", b"OK") if known else (b"400", b"not a key of these peers")
        self._socket.send_multipart([b"1.0", request, code, text, b"", b""])
        return True
