"""For operators: what `dropbatch tail` shows of a log line.

`dropbatch redrive` on queues that answer as SQS does.
"""

from dropbatch.cli.operators import redrive
from dropbatch.cli.verbs.operate import _log_line
from dropbatch.client.stack import Stack

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
    assert _log_line({"message": "batch done", "failed": {"internal": 3}}).endswith(
        "failed={'internal': 3}"
    )


class Queues:
    """Queues by URL. As SQS documents, a short poll asks some of its servers only.

    Here, those without messages.
    """

    def __init__(self, **messages):
        self.messages = messages

    def __call__(self, service):
        return self

    def receive_message(self, QueueUrl, MaxNumberOfMessages, WaitTimeSeconds=0):  # noqa: N803 - boto3's names
        waiting = self.messages.setdefault(QueueUrl, []) if WaitTimeSeconds else []
        found = [{"Body": body, "ReceiptHandle": body} for body in waiting[:MaxNumberOfMessages]]
        return {"Messages": found} if found else {}

    def send_message(self, QueueUrl, MessageBody):  # noqa: N803
        self.messages.setdefault(QueueUrl, []).append(MessageBody)

    def delete_message(self, QueueUrl, ReceiptHandle):  # noqa: N803
        self.messages[QueueUrl].remove(ReceiptHandle)


def test_every_dead_letter_is_found():
    letters = [f"letter {number}" for number in range(12)]
    queues = Queues(dead=list(letters))

    moved = redrive(
        Stack("s", "b", {"SubmitQueueUrl": "submit", "SubmitDeadLetterQueueUrl": "dead"}, queues)
    )

    assert moved == {"Submit": 12}
    assert queues.messages == {"dead": [], "submit": letters}
