"""AWS clients, and messages for botocore's errors. The only module that imports boto3."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dropbatch.errors import ConnectionLost, Error, NotFound, NotPermitted, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_DENIED = {"AccessDenied", "AccessDeniedException", "403", "AccessDeniedFault", "UnauthorizedOperation", "Forbidden"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_UNKNOWN_KEY = {
    *("InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"),
    *("InvalidToken", "AuthFailure", "InvalidSignatureException", "IncompleteSignature", "MissingAuthenticationToken"),
}
_SIGN_IN = {"AssumeRole", "AssumeRoleWithWebIdentity", "AssumeRoleWithSAML", "GetRoleCredentials", "GetSessionToken"}
"""Operations by which credentials are obtained."""
_SKEWED = {"RequestTimeTooSkewed", "RequestInTheFuture"}
_BUSY = {"SlowDown", "ServiceUnavailable", "InternalError", "Throttling", "ThrottlingException", "500", "503"}
_NOT_FOUND = {"NoSuchKey", "404", "NoSuchBucket", "NotFound", "ResourceNotFoundException"}

HOW_TO_SIGN_IN = (
    "Sign in as for the AWS CLI: `aws sso login`, with `--profile NAME` if AWS_PROFILE names one, or `aws configure` "
    "for access keys. `aws sts get-caller-identity` shows whether it worked."
)


def session(endpoint_url: str = "", *, region: str | None = None, profile: str | None = None) -> Any:  # noqa: ANN401 - boto3 makes its clients at run time
    """Return a factory of boto3 clients: `session()("s3")`.

    Args:
        endpoint_url: of a local AWS, which takes any access key; empty for AWS itself.
        region: None for the configured one: as the AWS CLI, and unlike boto3, AWS_REGION comes first.
        profile: None for the configured one.
    """
    import boto3

    if not endpoint_url:
        region = region or os.environ.get("AWS_REGION") or None
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
    try:
        yield
    except Exception as error:
        explanation = _explanation(error)
        if explanation is None:
            raise
        if not (retry and isinstance(explanation, ConnectionLost)):
            raise explanation from error


def _explanation(error: Exception) -> Error | None:
    """What an error of boto3 or botocore means; None for any other error. Loads them only if one of them is raised."""
    if not {"boto3", "botocore"} & {one.__module__.partition(".")[0] for one in type(error).__mro__}:
        # botocore raises ValueError for an endpoint that is no URL.
        return UsageError(f"{error}. Correct AWS_ENDPOINT_URL.") if str(error).startswith(_BAD_ENDPOINT) else None
    from boto3.exceptions import Boto3Error
    from botocore import exceptions as botocore
    from botocore.parsers import ResponseParserError

    if isinstance(error, Boto3Error) and isinstance(error.__context__, botocore.ClientError):
        error = error.__context__  # Copies wrap the error of AWS.
    if isinstance(error, botocore.ClientError):
        return _of_client(error)
    no_login = (botocore.SSOError, botocore.LoginError, botocore.TokenRetrievalError, botocore.CredentialRetrievalError)
    no_token = (botocore.RefreshWithMFAUnsupportedError, botocore.NoAuthTokenError, botocore.MetadataRetrievalError)
    lost = (botocore.ConnectionError, botocore.HTTPClientError, botocore.IncompleteReadError)
    says = f"{str(error).strip().rstrip('.')[:500]}."
    for kinds, made in (
        (botocore.NoCredentialsError, NotPermitted(f"No AWS credentials were found. {HOW_TO_SIGN_IN}")),
        (
            botocore.PartialCredentialsError,
            NotPermitted(f"The AWS credentials are not complete: {says} {HOW_TO_SIGN_IN}"),
        ),
        (no_login + no_token, NotPermitted(f"There are no valid AWS credentials: {says} {HOW_TO_SIGN_IN}")),
        (
            botocore.NoRegionError,
            UsageError("No AWS region is configured. Set AWS_REGION, or region in ~/.aws/config."),
        ),
        (lost, ConnectionLost(f"AWS could not be reached, or the connection was cut off: {says}")),
        (ResponseParserError, Error(f"What answered is not AWS; check AWS_ENDPOINT_URL and your proxy: {says}")),
        # What is left is wrong before any call: a profile, a setting, a parameter.
        (botocore.BotoCoreError, UsageError(f"AWS's configuration or a name is wrong: {says}")),
    ):
        if isinstance(error, kinds):
            return made
    return Error(says)


_BAD_ENDPOINT = ("Invalid endpoint: ", "Invalid endpoint URL")


def _of_client(error: Any) -> Error:  # noqa: ANN401
    code, message = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
    operation, says = error.operation_name, f"{message.rstrip('.')}."
    if code in _EXPIRED:
        return NotPermitted(f"The AWS credentials have expired. {HOW_TO_SIGN_IN}")
    if code in _UNKNOWN_KEY or operation in _SIGN_IN:
        return NotPermitted(f"AWS does not accept these credentials ({code}: {says}) {HOW_TO_SIGN_IN}")
    if code in _DENIED:
        advice = "Attach the policy in the stack's output UserPolicyArn; operator commands need OperatorPolicyArn."
        return NotPermitted(f"AWS denied {operation}: {says} {advice}")
    if code in _SKEWED:
        return NotPermitted(f"AWS denied {operation} because this machine's clock is wrong. Set it.")
    if code in _NOT_FOUND:
        return NotFound(f"{operation}: {message or code}")
    refused = f"AWS refused {operation}: {code}: {message}"
    return ConnectionLost(refused) if code in _BUSY else Error(refused)


def is_missing(s3: Any, bucket: str, key: str, error: Any) -> bool:  # noqa: ANN401 - boto3 makes its clients at run time
    """Whether a read that failed with a `ClientError` did so because its object does not exist.

    S3 may answer 403 for a missing key to a caller who may not list the bucket without a prefix, and the users' policy
    does not allow that: it would show every key. It allows to list this key, which decides.
    """
    from botocore.exceptions import ClientError

    code = error.response["Error"].get("Code", "")
    if code in _NOT_FOUND or code not in _DENIED:
        return code in _NOT_FOUND
    try:
        found = s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", [])
    except ClientError:
        return False  # The first error is the one to show.
    return key not in {entry["Key"] for entry in found}
