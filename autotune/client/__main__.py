"""``python -m autotune.client IN OUT``: a worker process."""

from autotune.client.worker import main

main()
