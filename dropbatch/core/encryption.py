"""What every write to the stack's bucket says about its encryption, whoever writes."""

from __future__ import annotations


def encryption(kms_key: str = "") -> dict[str, str]:
    """Arguments of S3's writes: the encryption that the bucket has by default.

    S3 encrypts an object in the same way without them, but organizations refuse writes that do not
    say so.

    Args:
        kms_key: the ARN of the stack's KMS key; empty if it has none.
    """
    if kms_key:
        return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}
    return {"ServerSideEncryption": "AES256"}
