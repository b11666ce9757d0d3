"""Worlds: functions, users, judges, and plans that a seed decides."""
