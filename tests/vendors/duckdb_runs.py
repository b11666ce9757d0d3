"""Runs SQL statements in DuckDB; prints the rows of the last."""

import json
import sys
from pathlib import Path

import duckdb

for statement in duckdb.extract_statements(Path(sys.argv[1]).read_text("utf-8")):
    found = duckdb.execute(statement)
print(json.dumps({"rows": found.fetchall()}, default=str))
