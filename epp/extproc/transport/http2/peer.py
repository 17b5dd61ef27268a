"""The peer's SETTINGS (RFC 9113 6.5.2)."""

from dataclasses import dataclass

from epp.extproc.transport.http2 import frames
from epp.extproc.transport.http2.errors import ErrorCode, H2ConnectionError
from epp.extproc.transport.http2.frames import SettingCode

_MAX_FRAME_SIZE = 2**24 - 1


@dataclass(slots=True)
class PeerSettings:
    """What the peer wants of us. Its table size and list limit do not matter: we send few fields, and index none."""

    initial_window: int = 65_535
    max_frame_size: int = frames.MIN_MAX_FRAME_SIZE

    def apply(self, payload: bytes) -> None:
        """Take the values of a SETTINGS frame; raises H2ConnectionError for one out of range."""
        for code, value in frames.settings_in(payload):
            if code == SettingCode.ENABLE_PUSH and value > 1:
                raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH neither 0 nor 1")
            if code == SettingCode.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1")
                self.initial_window = value
            if code == SettingCode.MAX_FRAME_SIZE:
                if not frames.MIN_MAX_FRAME_SIZE <= value <= _MAX_FRAME_SIZE:
                    raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
                self.max_frame_size = value
