"""Tables that are submitted: frames, Parquet, Arrow."""
