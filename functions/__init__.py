"""One package per Lambda function; only this code handles Lambda's events."""
