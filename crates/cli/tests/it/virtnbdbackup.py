"""Asks an export for what changed since a checkpoint, and reads it, by the library of virtnbdbackup.

Arguments: the server's socket, the export, and the checkpoint. Prints the offset, the length and the
SHA-256 of each changed extent."""

import hashlib
import sys

from libvirtnbdbackup.extenthandler.extenthandler import ExtentHandler
from libvirtnbdbackup.nbdcli.client import Unix, client

socket, export, checkpoint = sys.argv[1:]
kind = Unix(export, "qemu:dirty-bitmap:" + checkpoint, socket)
connection = client(kind).connect()
for extent in ExtentHandler(connection, kind).queryBlockStatus():
    if extent.data:
        data = connection.nbd.pread(extent.length, extent.offset)
        print(extent.offset, extent.length, hashlib.sha256(data).hexdigest())
connection.disconnect()
