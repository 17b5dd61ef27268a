"""Ports that nobody listens on now, for publishers that cannot choose their own."""

import random
import socket


def free_ports(count: int) -> list[int]:
    """Distinct free ports below those that the system gives to clients, so that no waiting client takes one."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports
