"""Measured path: the code that runs in a worker process during a load.

    worker        the process; messages: what it is sent, and what it answers (log and health of the client)
    generator     sends a schedule on kept-alive connections, records what comes back
    stream        one HTTP exchange, stamped per read of the socket; its server-sent events
    target        the server's address

Nothing here is imported that takes long to load: a worker is a process of its own
(`autotune.load.measuring`).
"""
