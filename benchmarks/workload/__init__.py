"""The measured work. It runs unchanged in every contestant's environment, so it uses only what all of them have.

`python -m benchmarks.workload MEASUREMENT [option=value ...]` does one measurement in a fresh process and
prints it as one line of JSON. Times are in seconds, sizes in MB of 2**20 bytes.
"""
