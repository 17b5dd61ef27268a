"""Streamed answers that a test reads piece by piece from the socket."""

import http.client
import json
import socket


def opened(port: int, *, max_tokens: int) -> socket.socket:
    """A streamed chat through the Envoy at `port`, whose answer the test reads itself."""
    raw = json.dumps(
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens, "stream": True}
    ).encode()
    return in_one_packet(port, "/v1/chat/completions", raw)


def in_one_packet(port: int, path: str, body: bytes) -> socket.socket:
    """A POST whose headers and body reach the gateway at `port` together, as most clients send them."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    stream = socket.create_connection(("127.0.0.1", port), timeout=30)
    stream.sendall(head.encode() + body)
    return stream


def status(stream: socket.socket) -> int:
    """The status of the answer, of which the rest is not read."""
    with stream:
        response = http.client.HTTPResponse(stream)
        response.begin()
        return response.status


def first_token(stream: socket.socket) -> None:
    """Read until the answer has begun; headers come before prefill is done."""
    seen = b""
    while b"data: " not in seen:
        part = stream.recv(65536)
        assert part, seen
        seen += part


def everything(stream: socket.socket) -> bytes:
    """The rest of what the server sends."""
    parts = []
    with stream:
        while part := stream.recv(65536):
            parts.append(part)
    return b"".join(parts)
