"""From options to what may be tried.

request       options to a checked `StudySpec`
goals         objective, SLOs, weights
candidates    `StudySpec` to the candidates of every engine and the baseline
no_effect     options of a command that are known to do nothing
user_library  the user's own space files beside the packaged ones
"""
