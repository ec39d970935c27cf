"""Hands each message to the site's persistent worker.

Flower starts a process per message, so this must import next to nothing.
"""

import os
from multiprocessing.connection import Client

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    os.chdir(os.environ["PFEDDSH_SITE"])  # the path of a socket may not be longer than 107 bytes
    with Client("worker.sock", "AF_UNIX") as worker:
        worker.send_bytes(message.content.array_records["call"]["body"].data)
        body = worker.recv_bytes()
    return Message(
        RecordDict({"reply": ArrayRecord({"body": Array("uint8", (len(body),), "bytes", body)})}), reply_to=message
    )
