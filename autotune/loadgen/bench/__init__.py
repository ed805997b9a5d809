"""``autotune bench`` and ``autotune compare``: what surrounds a measurement.

command      options in; measured, written, printed and judged
repeats      the same workload under several seeds, as one result
progress     the line that a person watches
result_file  the result as JSON, under the key names of ``vllm bench serve --save-result``
table        the result for people
compare      two results side by side
comparable   what keeps two results from being comparable
intervals    how sure a mean or a change is
"""
