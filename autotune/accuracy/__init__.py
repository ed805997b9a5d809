"""Check that a fast server still answers right: what a running server is asked, and how that is judged.

asking    greedy requests, alone or many at a time, and the tokens and log-probabilities of their answers
builtin   contexts: our own texts in prompts.yaml, cut at places, and long ones with needles; agreement of two
          servers' answers: what is damage and what is ordinary nondeterminism
check     the three checks behind one face, a file of known answers and somebody else's command among them: what a
          server's answers are, and whether they are as good as the baseline's; in a study the gate keeps the answers
          of each launch, and fails a finalist that answers worse

The check runs in the evaluator, on the warm server; the judgement in the tuner, where the baseline's answers are.
"""
