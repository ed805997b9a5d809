"""The measured path: what runs in a worker process while a load is under way.

    worker        the process; messages: what it is sent, and what it answers
    generator     sends a schedule on kept-alive connections, records what comes back
    stream        one HTTP exchange, stamped per read of the socket
    events        server-sent events, cut anywhere
    outcomes      how a request can end, and what a server's answer says of it
    request_log   what the client saw, in columns
    health        whether the client itself kept up
    target        the server's address

Nothing here is imported that takes long to load: a worker is a process of its own (`autotune.loadgen.workers`).
"""
