"""The command line of Dropbatch.

It uses the public interface alone: the bucket, the stack's outputs, logs, metrics and queues. It imports nothing of the
functions, so that it is installed without them.
"""
