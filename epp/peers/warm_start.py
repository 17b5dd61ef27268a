"""Beginning warm: what a peer knows, taken before this process is ready; and giving the same to others later."""

import asyncio
import random
import time

import structlog

from epp.kvcache.knowledge import KvKnowledge
from epp.peers.giver import Giver, Stock
from epp.peers.handover import VERSION, Learnt, Opening
from epp.peers.sharing import LoadSharing
from epp.peers.status import WarmStartStatus
from epp.peers.taker import NoSnapshotError, Shelf, Taken, Taker
from epp.scheduling.rates import LearntRates, Rates

_log = structlog.get_logger(__name__)

_TRIES = 3
_CONNECT_SECONDS = 2.0
"""That event streams get to connect: only what a peer says after that joins what they bring."""
_LOOK_SECONDS = 0.05


class WarmStart:
    """Gives from `start` to `stop`, once `warm`; takes with `run`, once. Live events wait until that is over."""

    def __init__(self, sharing: LoadSharing, knowledge: KvKnowledge, rates: Rates, *, max_blocks: int) -> None:
        self._sharing = sharing
        self._knowledge = knowledge
        self._rates = rates
        self._max_blocks = max_blocks
        self.warm = False
        """Whether this process is ready, so that others may begin where it is."""
        self._giver = Giver(Stock(warm=lambda: self.warm, opening=self._opening, snapshot=self._knowledge.snapshot))
        self._taken: Taken | None = None
        self._problem = ""

    async def start(self) -> None:
        """Give to who asks. Raises OSError when a port cannot be had."""
        carrier = self._sharing.carrier
        places = (place.snapshot for place in self._sharing.own_places)
        self._giver.start(carrier.context, carrier.drain, places, self._sharing.key)

    async def stop(self) -> None:
        """Give no more."""
        self.warm = False
        await self._giver.stop()

    async def run(self, timeout: float) -> None:
        """Take a snapshot from a warm peer, if there is one, within `timeout` seconds; then let live events go on."""
        try:
            await asyncio.wait_for(self._take(), timeout)
        except TimeoutError:
            self._problem = f"it took longer than EPP_WARMUP_TIMEOUT_SECONDS={timeout:g}"
        except NoSnapshotError as error:
            self._problem = str(error)
        except Exception:  # noqa: BLE001 - without a snapshot we begin as a first replica does
            self._problem = "internal fault; see the log"
            _log.exception("taking a snapshot failed")
        finally:
            self._knowledge.release()
        if self._taken is None:
            _log.info("begins without what peers know", reason=self._problem)

    def status(self) -> WarmStartStatus:
        """The section of `/status`."""
        taken = self._taken
        if taken is None:
            return WarmStartStatus(problem=self._problem, given=self._giver.given)
        return WarmStartStatus(
            peer=taken.peer,
            ranks=taken.ranks,
            blocks=taken.blocks,
            seconds=round(taken.seconds, 3),
            given=self._giver.given,
        )

    async def _take(self) -> None:
        await self._streams_connected()
        await self._sharing.places_known()
        carrier = self._sharing.carrier
        shelf = Shelf(
            take_secret=self._knowledge.take_secret,
            offer=self._knowledge.offer,
            learn=self._learn,
            max_blocks=self._max_blocks,
        )
        taker = Taker(carrier.context, carrier.drain, self._sharing.key, shelf)
        for left in range(_TRIES - 1, -1, -1):
            places = [place.snapshot for place in self._sharing.places()]
            random.shuffle(places)
            try:
                self._taken = await taker.take(places)
                _log.info("begins where a peer is", peer=self._taken.peer, blocks=self._taken.blocks)
                return
            except NoSnapshotError as error:
                if not left or not error.again:
                    raise

    async def _streams_connected(self) -> None:
        deadline = time.monotonic() + _CONNECT_SECONDS
        while time.monotonic() < deadline:
            if all(rank.connected or not rank.source for rank in self._knowledge.status().ranks):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _opening(self) -> Opening:
        learnt, group = self._rates.learnt(), self._sharing.group
        speeds = {group.key_of(column): speed for column, speed in learnt.speeds.items()}
        return Opening(
            VERSION,
            self._knowledge.index.secret,
            Learnt(learnt.curve, learnt.precision, learnt.moment, speeds),
        )

    def _learn(self, learnt: Learnt) -> None:
        columns = {self._sharing.group.column_of(key): speed for key, speed in learnt.speeds.items()}
        speeds = {column: speed for column, speed in columns.items() if column is not None}
        self._rates.take(LearntRates(learnt.curve, learnt.precision, learnt.moment, speeds))
