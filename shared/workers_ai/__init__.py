"""The Workers AI batch API: its client, its replies as data, its error codes."""
