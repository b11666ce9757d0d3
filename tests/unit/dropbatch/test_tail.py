"""What `dropbatch tail` shows of a log line."""

from dropbatch.cli.verbs.operate import _log_line

LINE = {
    "level": "ERROR",
    "location": "collect:107",
    "message": "message failed",
    "timestamp": "2026-11-22 03:41:22,634+0000",
    "service": "dropbatch",
    "cold_start": False,
    "function_arn": "arn:aws:lambda:eu-west-1:1:function:f",
    "xray_trace_id": "1-6b",
    "job_id": "20261122T034123Z-ad6bea2f",
    "asked": '{"do":"submit"}',
    "request_id": None,
    "exception": "Traceback (most recent call last):\n  File x\nValidationError: no",
    "exception_name": "ValidationError",
}


def test_line_shows_event_without_origin():
    assert _log_line(LINE) == (
        "2026-11-22 03:41:22,634+0000  ERROR    message failed  job_id=20261122T034123Z-ad6bea2f "
        'asked={"do":"submit"} exception=ValidationError: no'
    )


def test_field_of_several_values_is_shown():
    assert _log_line({"message": "batch done", "failed": {"internal": 3}}).endswith("failed={'internal': 3}")
