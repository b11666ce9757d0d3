"""Adapters for the AWS services that Dropbatch uses.

Each knows one service and nothing about jobs.
"""
