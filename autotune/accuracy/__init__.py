"""Whether a fast server still answers right: what ``--accuracy`` asks of a running server, and how it is judged.

asking    greedy requests, alone or many at a time, and the tokens and log-probabilities of their answers
builtin   contexts: our own texts in prompts.yaml, cut at places, and long ones with needles; agreement of two
          servers' answers: what is damage and what is ordinary nondeterminism
tasks     a task file: answers that are known, a score, and the interval of a paired difference
check     the three checks behind one face, somebody else's command among them: what a server's answers are, and
          whether they are as good as the baseline's; in a study the gate keeps the answers of each launch, and
          fails a finalist that answers worse

The check runs in the evaluator, on the warm server; the judgement in the tuner, where the baseline's answers are.
"""
