-- Results as tables in DuckDB. Replace BUCKET. To read from S3: CREATE SECRET (TYPE s3, PROVIDER credential_chain);

-- The jobs that are over.
CREATE VIEW jobs AS
SELECT job_id, state, source.key AS upload, counts.total, counts.failed, cost.amount::DECIMAL(18, 8) AS dollars
FROM read_json('s3://BUCKET/results/reviews/**/manifest.json', columns = {
  job_id: 'VARCHAR', state: 'VARCHAR', source: 'STRUCT(key VARCHAR)', counts: 'STRUCT(total BIGINT, failed BIGINT)',
  cost: 'STRUCT(amount VARCHAR)'});

-- The answers of the newest job of each path.
CREATE VIEW answers AS
SELECT upload, id, external_reference, success, result, error
FROM read_json('s3://BUCKET/results/reviews/**/output.jsonl', format = 'newline_delimited', filename = true, columns = {
  id: 'BIGINT', external_reference: 'JSON', success: 'BOOLEAN', result: 'JSON',
  error: 'STRUCT(code VARCHAR, message VARCHAR)'}) AS lines
JOIN (SELECT upload, max(job_id) AS job_id FROM jobs GROUP BY upload) AS newest
ON lines.filename LIKE '%/' || newest.job_id || '/output.jsonl';
