"""What a user's program does with a stack: upload, wait, download, read, and command jobs."""
