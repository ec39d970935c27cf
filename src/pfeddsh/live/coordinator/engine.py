"""Calls to clients go over the exchange; what the server computes for itself runs here."""

from concurrent.futures import Future

from pfeddsh.federation.engines import Reply
from pfeddsh.federation.workbench import SERVER, Call, Workbench
from pfeddsh.live.coordinator.admission import Admission
from pfeddsh.live.coordinator.config import LiveConfig
from pfeddsh.live.coordinator.door import ANSWERS, plain
from pfeddsh.live.coordinator.schedule import LiveSchedule
from pfeddsh.live.exchange import Absent, Exchange, NotNow
from pfeddsh.live.wire import LATER, call_head, decode
from pfeddsh.messages import Memory, Message
from pfeddsh.methods import registry
from pfeddsh.methods.task import Task

PATIENT = ("card", "local", "settle", "keep")  # worth waiting for a client that is not connected right now
DAY = 86400.0  # seconds: nobody is waited for longer than that
ROOM = 1 << 20  # bytes of an answer in numbers, and by which other replies may exceed twice what was sent


class LiveBench(Workbench):
    """A workbench without data: that of the coordinator."""

    plan: LiveSchedule

    def __init__(self, config: LiveConfig, taken: list[tuple[int, ...]]) -> None:
        self.config = config.training()
        self.plan = LiveSchedule.create(self.config, taken)
        self.task = Task.create(len(config.classes), config.seed, config.model, config.shape)
        self.method = registry.create(config.method, self.config.options, self.task)


class LiveEngine:
    """An engine whose replies may fail to come (`Absent`) or be unreadable (`BadMessage`)."""

    def __init__(self, bench: LiveBench, config: LiveConfig, exchange: Exchange, admission: Admission) -> None:
        self._bench, self._config, self._exchange, self._admission = bench, config, exchange, admission
        self._settings = config.for_sites()
        self._last: tuple[Message, bytes] = Message(), b""  # the message of the last call, as it is sent

    def submit(self, call: Call, background: bool = False) -> "Future[Reply]":
        result: Future[Reply] = Future()
        if call.visit.client == SERVER:
            result.set_result(self._bench.run(call))
            return result
        key = self._admission.roster.clients[call.visit.client].key
        parts = call_head(call, self._settings), self._encoded(call.message)
        grace = self._config.offline_after if call.job in PATIENT else 0.0
        limit = ROOM if call.job in ANSWERS else 2 * sum(map(len, parts)) + ROOM
        sent = self._exchange.ask(lambda: self._admission.node_of(key), parts, self._config.round_timeout, grace, limit)
        sent.add_done_callback(lambda done: _hand_over(done, result))
        return result

    def _encoded(self, message: Message) -> bytes:
        """Many sites are sent the same, one after the other: it is encoded, and lies in memory, once."""
        last = self._last
        if message is not last[0]:
            last = self._last = message, message.encode()
        return last[1]

    def close(self) -> None:
        self._exchange.close()


def _hand_over(done: "Future[bytes]", result: "Future[Reply]") -> None:
    try:
        result.set_result(read_reply(done.result()))
    except Exception as error:
        result.set_exception(error)


def read_reply(body: bytes) -> Reply:
    """The message of a site's reply; one that says it could not work is as good as absent."""
    header, message = decode(body)
    status, reason, seconds = header.get("status"), plain(str(header.get("reason")), 200), header.get("seconds")
    if status == LATER and (seconds is None or (isinstance(seconds, int | float) and 0 <= seconds <= DAY)):
        raise NotNow(reason, seconds)
    if status != "ok":
        raise Absent(f"failed at the site: {reason}")
    return message, Memory()
