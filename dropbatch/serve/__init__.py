"""OpenAI's Files and Batch API in front of a stack: `dropbatch serve`.

Shapes, limits and status codes are those of OpenAI's OpenAPI document (version 2.3.0,
github.com/openai/openai-openapi, commit f85dbe2 of 21 August 2026), and of the types in the package
`openai` 3.54. Everything is in the bucket: files and batches under `files/`, a batch's work in its
job. A server keeps nothing but copies of what does not change.
"""
