"""Errors, evidence, child processes, redaction, files written safely.

It hides the operating system; every room uses it. Public: `errors`, `evidence.Evidence`,
`files.write_atomically`, `child.run_program`, `redact.text`, `options.option`, `arrays`.

>>> from autotune.base.errors import BadInput
>>> raise BadInput("--gpus 0: a whole number above 0 is needed")  # exit code 2, without a traceback
"""
