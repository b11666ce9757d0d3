"""How DuckDB and jq read result files."""

import json
import sys
from pathlib import Path

import duckdb
import jq


def main() -> None:
    """Read the files of a folder; print each line by file and reader, of a table its `text`."""
    found: dict[str, dict[str, list[object]]] = {}
    same = jq.compile(".")
    for path in sorted(Path(sys.argv[1]).iterdir()):
        if path.suffix == ".jsonl":
            query = f"SELECT json FROM read_json_objects('{path}', format = 'newline_delimited')"
            rows = [json.loads(row[0]) for row in duckdb.sql(query).fetchall()]
            found[path.name] = {
                "duckdb": rows,
                "jq": same.input_text(path.read_text("utf-8")).all(),
                "jq, line by line": [
                    same.input_text(line).first() for line in path.read_text("utf-8").splitlines()
                ],
            }
        else:
            query = (
                f"SELECT text FROM read_csv('{path}', all_varchar = true, quote = '\"', "
                "escape = '\"')"
            )
            found[path.name] = {"duckdb": [row[0] for row in duckdb.sql(query).fetchall()]}
    print(json.dumps(found))


main()
