"""The library: a stack, jobs, uploads, results.

Each module imports those above it: `aws`; `stack`, `threads`; `frames`, `progress`, `upload`;
`sources`, `check`, `records`; `job`; `find`, `submit`, `download`, `arrow`; `wait`, `again`,
`validate`, `report`; `fits`, `merge`; `export`; `client`. A job's methods import what they call.
"""
