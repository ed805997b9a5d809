"""``autotune bench`` and ``autotune compare``: what surrounds a measurement.

options    the options of ``bench``, checked before anything is sent
results    repeats as one result, as JSON under the key names of ``vllm bench serve --save-result``
printing   the result and its progress for people
compare    two results side by side
intervals  95 % intervals of a mean or a change
"""
