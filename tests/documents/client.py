"""Stands for ``autotune`` on the PATH of a documented script: passes its words to the test, which
runs them.

A socket's path stands in ``DOCUMENTS_SOCKET``. One message goes there: words, environment and
folder as JSON, with this process's outputs; the exit status comes back.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
    channel.connect(os.environ["DOCUMENTS_SOCKET"])
    call = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}
    socket.send_fds(channel, [json.dumps(call).encode()], [1, 2])
    sys.exit(int(channel.recv(16) or b"70"))
