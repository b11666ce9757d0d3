"""Turns an upload's bytes into batches of records. Pure: no S3, no ledger, no clock."""
