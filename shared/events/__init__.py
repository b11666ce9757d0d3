"""Cloudflare's events of batches.

The queue they are sent to, what is known of them, and which batch they name.

An event makes a poll due and nothing else: with all of them lost, everything works by polls alone.
"""
