"""Measured path: the code that runs in a worker process during a load.

    messages      between the worker process and its parent: tasks, log and health of the client
    generator     the worker: sends a schedule on kept-alive connections, records the answers
    stream        one HTTP exchange, stamped per read of the socket; its server-sent events
    target        the server's address

Nothing here is imported that takes long to load: a worker is a process of its own
(`autotune.load.measuring`).
"""
