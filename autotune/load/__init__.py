"""What is sent and what is counted.

`workloads` says what is sent, `datasets` how long prompts and answers are, `metrics` holds every
formula. The simulated node and a load generator for real servers use the same three.
"""
