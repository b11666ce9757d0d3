"""From the bytes of an upload to batches of records. Pure, but for `stream`, which reads S3."""
