"""Adapters for AWS services: each knows one service and nothing about jobs."""
