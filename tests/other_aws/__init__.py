"""Second implementations of AWS's services, for `make test-second`."""
