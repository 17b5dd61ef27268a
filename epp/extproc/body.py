"""The request body while it waits for the pick, and the bound on all of them together."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """Bytes that all exchanges together may hold."""

    limit: int
    used: int = 0

    @property
    def spent(self) -> bool:
        """Whether more is held than allowed."""
        return self.used > self.limit


@dataclass(slots=True)
class HeldBody:
    """The chunks of one body as they came; they are sent on from here, never copied to be kept."""

    budget: Budget
    limit: int
    size: int = 0
    """Bytes seen in all, held or already gone."""
    full: bool = False
    """More came than may be held: what is here must do for the pick."""
    chunks: list[bytes] = field(default_factory=list)

    def keep(self, chunk: bytes) -> None:
        """Hold one more chunk. It is kept even beyond the limit, since it has to be sent on."""
        self.size += len(chunk)
        if chunk:
            self.chunks.append(chunk)
            self.budget.used += len(chunk)
            self.full = self.size > self.limit or self.budget.spent

    def joined(self) -> bytes:
        """What is held; a copy only when it came in several chunks."""
        return self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)

    def forget(self) -> None:
        """Let go of the chunks."""
        self.budget.used -= sum(map(len, self.chunks))
        self.chunks.clear()
