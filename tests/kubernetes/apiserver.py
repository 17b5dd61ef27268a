"""A real kube-apiserver with a real etcd on loopback, and the faults that can be done to it."""

import os
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import trustme
import yaml

from epp.simulate.child import start_child
from tests.waiting import free_port

START_SECONDS = 90.0
NAME = "kubetest"


class ApiServer:
    """Two processes, each of which can be frozen, killed and started again over the same data and port."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self.binary = binary
        self.directory = directory
        self.port = free_port()
        self.token = secrets.token_hex(16)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (directory / "certs").mkdir()
        key = trustme.CA().private_key_pem.bytes()  # signs service account tokens
        (directory / "sa.key").write_bytes(key)
        (directory / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        return self.directory / "certs" / "apiserver.crt"

    def start(self, *flags: str) -> None:
        """Start what does not run, and wait until it says ready."""
        self.spawn(*flags)
        self.wait_ready()

    def spawn(self, *flags: str) -> None:
        """Start what does not run, from the main thread: both processes end with the thread that started them."""
        if "etcd" not in self.processes:
            (self.directory / "etcd.sock").unlink(missing_ok=True)
            self._spawn("etcd", "etcd", "data", "unix://etcd.sock")
        if "apiserver" not in self.processes:
            self._spawn("apiserver", "apiserver", *self._flags(), *flags)

    def stop(self, which: str, signal_number: int = signal.SIGKILL) -> None:
        """End one process and wait until its port is free."""
        process = self.processes.pop(which)
        process.send_signal(signal_number)
        process.wait(60)

    def close(self) -> None:
        """End both."""
        for which in list(self.processes):
            self.processes[which].send_signal(signal.SIGCONT)
            self.stop(which)

    def freeze(self, which: str) -> None:
        self.processes[which].send_signal(signal.SIGSTOP)

    def thaw(self, which: str) -> None:
        self.processes[which].send_signal(signal.SIGCONT)

    def compact(self) -> None:
        """Drop etcd's history, so that watches from an old version cannot resume."""
        subprocess.run([self.binary, "compact", "unix://etcd.sock"], cwd=self.directory, check=True)

    def wait_ready(self) -> None:
        """Until /readyz is fine."""
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            dead = [name for name, process in self.processes.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = "\n".join((self.directory / f"{name}.log").read_text()[-2000:] for name in dead or ["apiserver"])
                raise RuntimeError(f"API server does not start: {logs}")
            time.sleep(0.05)

    def kubeconfig(
        self, path: Path, *, token: str | None = None, token_file: Path | None = None, port: int = 0
    ) -> Path:
        """Write a kubeconfig for the admin, or for the bearer of a token."""
        user = {"tokenFile": str(token_file)} if token_file else {"token": token or self.token}
        server = f"https://127.0.0.1:{port or self.port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": NAME,
            "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
            "clusters": [{"name": NAME, "cluster": {"server": server, "certificate-authority": str(self.ca)}}],
            "users": [{"name": NAME, "user": user}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def _spawn(self, which: str, *arguments: str) -> None:
        self.processes[which] = start_child(
            [str(self.binary), *arguments],
            log=self.directory / f"{which}.log",
            environ=os.environ | {"GOGC": "200"},
            folder=self.directory,  # a socket path is at most 107 bytes, so it is relative
        )

    def _flags(self) -> list[str]:
        return [
            "--etcd-servers=unix://etcd.sock",
            "--etcd-compaction-interval=0",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--endpoint-reconciler-type=none",
            "--cert-dir=certs",
            "--authorization-mode=RBAC",
            "--token-auth-file=tokens.csv",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=sa.key",
            "--service-account-signing-key-file=sa.key",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            "--shutdown-watch-termination-grace-period=1s",
        ]

    def _ready(self) -> bool:
        if not self.ca.exists():
            return False
        request = urllib.request.Request(self.url + "/readyz", headers={"Authorization": f"Bearer {self.token}"})
        try:
            context = ssl.create_default_context(cafile=str(self.ca))
            with urllib.request.urlopen(request, timeout=2, context=context) as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
