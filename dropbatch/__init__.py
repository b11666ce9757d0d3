"""The command line of Dropbatch.

It uses only the public interface: the bucket, the stack's outputs, logs, metrics and queues. It imports no code of the
functions, so it can be installed without them.
"""
