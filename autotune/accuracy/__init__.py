"""Check that a fast server still answers right: what a running server is asked, and how that is judged.

The check runs in the evaluator, on the warm server; the judgement in the tuner, where the baseline's answers are.
"""
