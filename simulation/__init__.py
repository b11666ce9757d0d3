"""AWS in memory for tests: functions, queues, a table and a bucket on one clock, where a seed decides what happens."""
