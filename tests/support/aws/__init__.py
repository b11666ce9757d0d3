"""AWS in tests: resources as in the template, what roles allow, S3's limits, and a faster moto."""
