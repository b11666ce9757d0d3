"""Lambda 1: reads uploads, cuts them into batches, submits the batches."""
