"""Cloudflare's Queues in simulated worlds.

Completion events, what happens to them, and their laws.
"""
