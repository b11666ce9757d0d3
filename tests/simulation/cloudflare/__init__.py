"""Cloudflare's Queues in simulated worlds: completion events, what happens to them, and their laws."""
