"""Cloudflare's Queues and event subscriptions, as far as completion events of batches need them."""
