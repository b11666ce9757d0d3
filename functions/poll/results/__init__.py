"""What a job leaves in S3: result files and manifest."""
