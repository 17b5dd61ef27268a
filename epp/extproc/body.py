"""The request body while it waits for the pick, and the bound on all of them together."""

from dataclasses import dataclass, field

from epp.extproc.splice import replace_model


@dataclass(slots=True)
class Budget:
    """Bytes that all exchanges together may hold."""

    limit: int
    used: int = 0


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
    changed: bool = False
    """Whether the chunks are no longer what came."""

    def keep(self, chunk: bytes) -> None:
        """Hold one more chunk. It is kept even beyond the limit, since it has to be sent on."""
        self.size += len(chunk)
        if chunk:
            self.chunks.append(chunk)
            self.budget.used += len(chunk)
            self.full = self.size > self.limit or self.budget.used > self.budget.limit

    def joined(self) -> bytes:
        """What is held; a copy only when it came in several chunks."""
        return self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)

    def rewrite_model(self, model: str) -> None:
        """Put `model` in place of the model that the body names; a body that names none stays as it is."""
        changed = replace_model(self.joined(), model)
        if changed is not None:
            self.forget()
            self.chunks.append(changed)
            self.budget.used += len(changed)
            self.changed = True

    def forget(self) -> None:
        """Let go of the chunks."""
        if self.chunks:
            self.budget.used -= sum(map(len, self.chunks))
            self.chunks.clear()
