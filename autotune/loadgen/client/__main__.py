"""``python -m autotune.loadgen.client IN OUT``: a worker process."""

from autotune.loadgen.client.worker import main

main()
