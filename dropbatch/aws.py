"""AWS clients, and messages for botocore's errors. The only module that imports boto3."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dropbatch.errors import Error, NotFound, NotPermitted, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_DENIED = {"AccessDenied", "AccessDeniedException", "403", "AccessDeniedFault", "UnauthorizedOperation", "Forbidden"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_UNKNOWN_KEY = {"InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"}
_NOT_FOUND = {"NoSuchKey", "404", "NoSuchBucket", "NotFound", "ResourceNotFoundException"}


def session(endpoint_url: str = "", *, region: str | None = None, profile: str | None = None) -> Any:  # noqa: ANN401 - boto3 makes its clients at run time
    """Return a factory of boto3 clients: `session()("s3")`.

    Args:
        endpoint_url: of a local AWS, which takes any access key; empty for AWS itself.
        region: None for the configured one.
        profile: None for the configured one.
    """
    import boto3

    if not endpoint_url:
        made = boto3.session.Session(region_name=region, profile_name=profile)
        return made.client
    made = boto3.session.Session("test", "test", region_name=region)
    return lambda service, **more: made.client(service, endpoint_url=endpoint_url, **more)


@contextmanager
def explained(*, retry: bool = False) -> Iterator[None]:
    """Turn botocore's errors into messages that say what to do.

    Args:
        retry: suppress the errors of a connection that was cut off, because the caller tries again.

    Raises:
        Error: for every other botocore error.
    """
    from boto3.exceptions import Boto3Error
    from botocore import exceptions as botocore

    try:
        yield
    except botocore.NoCredentialsError as error:
        raise NotPermitted("No AWS credentials were found. Configure them as for the AWS CLI.") from error
    except botocore.NoRegionError as error:
        raise UsageError("No AWS region is configured. Set AWS_REGION, or region in ~/.aws/config.") from error
    except botocore.ProfileNotFound as error:
        raise UsageError(f"{error}.") from error
    except botocore.ClientError as error:
        raise _of_client(error) from error
    except Boto3Error as error:  # File uploads wrap the error that AWS returned.
        if isinstance(error.__context__, botocore.ClientError):
            raise _of_client(error.__context__) from error
        raise Error(str(error)) from error
    except (botocore.ResponseStreamingError, botocore.IncompleteReadError, botocore.ReadTimeoutError) as error:
        if not retry:
            raise Error(f"The connection to AWS was cut off: {error}") from error
    except botocore.BotoCoreError as error:
        raise Error(f"AWS could not be reached: {error}") from error


def _of_client(error: Any) -> Error:  # noqa: ANN401
    code, message = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
    operation = error.operation_name
    if code in _DENIED:
        advice = "Attach the policy in the stack's output UserPolicyArn; operator commands need OperatorPolicyArn."
        return NotPermitted(f"AWS denied {operation}: {message.rstrip('.')}. {advice}")
    if code in _EXPIRED:
        return NotPermitted("The AWS credentials have expired. Sign in again.")
    if code in _UNKNOWN_KEY:
        return NotPermitted(f"AWS does not recognise these credentials ({code}).")
    if code in _NOT_FOUND:
        return NotFound(f"{operation}: {message or code}")
    return Error(f"AWS refused {operation}: {code}: {message}")


def is_not_found(error: Exception) -> bool:
    """Whether a client's error means that an object, a bucket or another resource does not exist."""
    response = getattr(error, "response", {})
    return response.get("Error", {}).get("Code", "") in _NOT_FOUND


def is_missing(s3: Any, bucket: str, key: str, error: Exception) -> bool:  # noqa: ANN401 - boto3 makes its clients at run time
    """Whether a read failed because its object does not exist.

    S3 may answer 403 for a missing key to a caller who may not list the bucket without a prefix, and the users' policy
    does not allow that: it would show every key. It allows to list this key, which decides.
    """
    from botocore.exceptions import ClientError

    if is_not_found(error):
        return True
    if not isinstance(error, ClientError) or error.response["Error"].get("Code") not in _DENIED:
        return False
    try:
        found = s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", [])
    except ClientError:
        return False  # The first error is the one to show.
    return key not in {entry["Key"] for entry in found}
