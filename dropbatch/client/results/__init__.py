"""What a user does with a job's results: download, read, merge, export."""

EXPORTS = {
    "parquet": "output.parquet",
    "arrow": "output.arrow",
    "csv": "output.as.csv",
    "jsonl": "output.as.jsonl",
    "npy": "output.npy",
    "vectorize": "output.vectorize.ndjson",
}
"""The file that each export of results writes on the user's machine."""
