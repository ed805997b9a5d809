"""The measured path: what runs in a worker process while a load is under way.

    requests      what a load point asks for, in numbers
    prompts       what the requests say; `texts` makes random text of a given length
    tokenizers    how many tokens a text has
    generator     one worker's share of a load: a schedule in, a log of requests out
    connections   kept-alive connections to one server
    stream        one HTTP exchange, stamped per read of the socket
    events        server-sent events, cut anywhere
    watch         what keeps a load from hanging
    said          the server's own words and counts
    outcomes      how a request can end
    records       what the client saw, in columns; `request_log` adds how each request ended
    health        whether the client itself kept up

Nothing here is imported that takes long to load: a worker is a process of its own (`autotune.loadgen.workers`).
"""
