"""Lambda 2, on a schedule: polls pending batches, collects finished ones, finishes jobs."""
