"""What a user does with a job's results: download, read, merge, export."""
