"""Cloudflare's events of batches: the queue they come to, what is known, whose they are.

The promise: with events, a batch of a known model costs two calls, and its answer is collected
within seconds. An event makes a poll due and nothing else: with all of them lost, late, doubled or
made up, everything works by polls alone. All that is learned is when an event of a model came last.
"""
