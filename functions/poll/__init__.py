"""Lambda 2, on a schedule: asks after pending batches, collects finished ones, finishes jobs."""
