"""A study: its specification, its folder, its rows and its recommendation, as values.

options         the options of a command line as they were typed
spec            `StudySpec`: everything that is asked, frozen
home            the folder of every study
results         `results.jsonl`, and the lock of a study
recommendation  the content of `recommendation.json`
tracking_uri    where MLflow runs go
"""
