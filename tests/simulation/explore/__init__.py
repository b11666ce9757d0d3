"""Explore: small worlds under every schedule, and searches for what breaks a law."""
