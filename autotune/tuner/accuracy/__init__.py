"""Check that a fast server still answers correctly: the questions to a running server, and their
evaluation.

The check runs in the evaluator, on the warm server; the judgement in the tuner, where the
baseline's answers are.
"""
