"""The persistent process of a site: holds torch, data and memory, and answers calls on a socket in the site's folder.

Started by `pfeddsh join` as `python -m pfeddsh.live.site.worker HOME`; ends when its parent does.
"""

import logging
import os
import select
import signal
import sys
import traceback
from multiprocessing.connection import Listener
from pathlib import Path

import torch

from pfeddsh.errors import UserError
from pfeddsh.live.site.calls import Site
from pfeddsh.live.site.join import SiteConfig
from pfeddsh.live.site.policy import NoTraining, PolicyRefusal, load
from pfeddsh.live.wire import LATER, encode
from pfeddsh.messages import BadMessage, Message
from pfeddsh.storage.files import locked

SOCKET = "worker.sock"
log = logging.getLogger("pfeddsh.worker")


def reply(site: Site, body: bytes) -> bytes:
    """The site's answer, or why there is none: in full in its own log, without names of files to the outside.

    It is in the audit log before it leaves.
    """
    status = "error"
    try:
        answer, status = site.answer(body), "ok"
    except NoTraining as error:
        log.info("%s", error)
        status = LATER
        answer = encode({"status": status, "reason": str(error), "seconds": error.seconds}, Message())
    except PolicyRefusal as error:
        log.error("%s", error)
        answer = _told(str(error))
    except BadMessage as error:  # about what the coordinator sent
        log.error("%s", error)
        answer = _told(f"the site cannot use what it was sent: {error}")
    except UserError as error:
        log.error("%s", error)
        answer = _told("the site's data or settings need its attention; its worker.log says what is wrong")
    except Exception as error:
        log.error("%s", traceback.format_exc())
        answer = _told(f"{type(error).__name__} at the site; its worker.log says more")
    try:
        site.record(answer, status)
    except OSError as error:
        log.error("nothing leaves, as the audit log cannot be written: %s", error)
        raise
    return answer


def _told(reason: str) -> bytes:
    return encode({"status": "error", "reason": reason}, Message())


def serve(site: Site) -> None:
    """Answer one call after the other; between calls, work on the local-only control."""
    parent = os.getppid()
    Path(SOCKET).unlink(missing_ok=True)
    with Listener(SOCKET, "AF_UNIX") as listener:
        os.chmod(SOCKET, 0o600)
        waiting = listener._listener._socket  # type: ignore[attr-defined]  # the only way to wait with a timeout
        while os.getppid() == parent:
            if not select.select([waiting], [], [], 0)[0] and _idle(site):
                continue
            if not select.select([waiting], [], [], 1.0)[0]:
                continue
            try:
                with listener.accept() as connection:
                    connection.send_bytes(reply(site, connection.recv_bytes()))
            except (EOFError, OSError) as error:  # the messenger is gone; the reply waits on disk
                log.warning("a messenger left: %r", error)


def _idle(site: Site) -> bool:
    try:
        return site.idle_work()
    except Exception:
        log.error("the control failed: %s", traceback.format_exc())
        return False


def main(home: Path, make: type[Site] = Site) -> None:
    os.chdir(home)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    torch.set_num_threads(1)
    config = SiteConfig.load(Path())
    with locked(Path()):
        site = make(Path(), config.name, config.key(Path()), config.data, config.allow, load(Path()))
        log.info("worker of %s, %s", config.name, config.data)
        serve(site)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
