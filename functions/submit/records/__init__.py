"""Turns an upload's bytes into batches of records. Pure, except for `stream`, which reads S3."""
