"""AWS clients, and messages for botocore's errors. The only module that imports boto3."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropbatch.core.names import encryption
from dropbatch.errors import ConnectionLost, Error, NotFound, NotPermitted, UsageError

if TYPE_CHECKING:
    import boto3

_DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "AccessDeniedFault",
    "403",
    "Forbidden",
    "UnauthorizedOperation",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_UNKNOWN_KEY = {
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "AuthFailure",
    "InvalidSignatureException",
    "IncompleteSignature",
    "MissingAuthenticationToken",
}
_BUSY = {
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "Throttling",
    "ThrottlingException",
    "500",
    "503",
}
_NOT_FOUND = {"NoSuchKey", "404", "NoSuchBucket", "NotFound", "ResourceNotFoundException"}
_SIGN_IN = {
    "AssumeRole",
    "AssumeRoleWithWebIdentity",
    "AssumeRoleWithSAML",
    "GetRoleCredentials",
    "GetSessionToken",
}
"""Operations by which credentials are obtained."""
_SKEWED = {"RequestTimeTooSkewed", "RequestInTheFuture"}
_SKEW_WORDS = re.compile("Signature expired|Signature not yet current", re.IGNORECASE)
"""In the message of a service whose code for a wrong clock is the one for a wrong key."""
MAX_CLOCK_SECONDS = 300.0
"""AWS denies requests that are signed with a clock that differs by more than five minutes."""

HOW_TO_SIGN_IN = (
    "Sign in as for the AWS CLI: `aws login` or `aws sso login`, with `--profile NAME` if "
    "AWS_PROFILE names one, or `aws configure` for access keys. `aws sts get-caller-identity` "
    "shows whether it worked."
)
USERS_ADVICE = (
    "Attach the policy in the stack's output UserPolicyArn; operator commands need "
    "OperatorPolicyArn."
)
_BY_ORGANIZATION = (
    "A policy of your organization refuses it; only who administers the organization can change "
    "that."
)
_REFUSERS = {
    "service control policy": _BY_ORGANIZATION,
    "resource control policy": _BY_ORGANIZATION,
    "permissions boundary": "The permissions boundary of your user or role refuses it, whatever "
    "policy is attached: the boundary must allow it too.",
    "session policy": "The policy of your session refuses it: sign in with another role or "
    "permission set.",
    "VPC endpoint policy": "The policy of the VPC endpoint that the call went through refuses it.",
}
"""What to do, by the kind of policy that AWS's message names; UserPolicyArn adds to none."""
_REFUSED_BY = re.compile(f"(?:explicit deny in an?|because no) ({'|'.join(_REFUSERS)})")
_OTHER_DENY = (
    "A policy denies it explicitly: it must be changed, because no other policy can allow it."
)
_WRITES = ("PutObject", "CreateMultipartUpload", "CopyObject")
"""S3's operations that decide how an object is encrypted."""


def sign_in(
    *,
    region: str | None = None,
    profile: str | None = None,
    copy: Any = None,
) -> boto3.Session:
    """A session that finds region and credentials as the AWS CLI does.

    A role is remembered where the AWS CLI does it, so that both ask for a code (MFA) once an hour;
    `copy` is where another program looks for roles. Unlike for boto3, AWS_REGION comes first.
    """
    import boto3
    from botocore.session import get_session

    region = region or os.environ.get("AWS_REGION") or None
    core = get_session()
    made = boto3.session.Session(region_name=region, profile_name=profile, botocore_session=core)
    core.get_component("credential_provider").get_provider("assume-role").cache = _remembered_roles(
        {} if copy is None else copy
    )
    return made


def _remembered_roles(copy: Any) -> Any:
    from botocore.utils import JSONFileCache

    class Remembered(JSONFileCache):
        def __getitem__(self, key: str) -> Any:
            found = super().__getitem__(key)
            with suppress(OSError):
                copy[key] = found
            return found

        def __setitem__(self, key: str, value: object) -> None:
            with suppress(OSError):  # A home that cannot be written to: the role is assumed again.
                super().__setitem__(key, value)
                copy[key] = value

    try:
        return Remembered(str(Path.home() / ".aws/cli/cache"))
    except RuntimeError:  # A container's user without a home.
        return copy


@dataclass
class Clients:
    """A factory of boto3 clients, `Clients()("s3")`, that can be pickled.

    Those of S3 say how each object is encrypted that they write.
    """

    endpoint_url: str = ""
    region: str | None = None
    profile: str | None = None
    kms_key: str = ""

    def __call__(self, service: str, **more: object) -> Any:
        """A client of a service."""
        where: dict[str, Any] = {"endpoint_url": self.endpoint_url} if self.endpoint_url else {}
        made = self._session.client(service, **where, **more)
        for operation in _WRITES if service == "s3" else ():
            made.meta.events.register(f"before-parameter-build.s3.{operation}", self._encrypt)
        return made

    @cached_property
    def _session(self) -> Any:
        if not self.endpoint_url:
            return sign_in(region=self.region, profile=self.profile)
        import boto3

        return boto3.session.Session("test", "test", region_name=self.region)

    def _encrypt(self, params: dict[str, Any], **_: object) -> None:
        for name, value in encryption(self.kms_key).items():
            params.setdefault(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Clients, (self.endpoint_url, self.region, self.profile, self.kms_key)


def trusted_bundles() -> list[str]:
    """Files of certificates that boto3 trusts: those that are configured, and its own."""
    from botocore.httpsession import where
    from botocore.session import get_session

    configured = get_session().get_config_variable("ca_bundle")
    return [*filter(None, (configured, os.environ.get("REQUESTS_CA_BUNDLE"))), where()]


@contextmanager
def explained(*, retry: bool = False, advice: str = USERS_ADVICE) -> Iterator[None]:
    """Turn botocore's errors into messages that say what to do.

    Args:
        retry: suppress the errors of a connection that was cut off: the caller tries again.
        advice: what to do about a call that is denied because nothing allows it.
    """
    try:
        yield
    except Exception as error:
        explanation = _explanation(error, advice)
        if explanation is None:
            raise
        if not (retry and isinstance(explanation, ConnectionLost)):
            raise explanation from error


_MEANINGS: tuple[tuple[type[Error], str, set[str]], ...] = (
    (NotPermitted, f"No AWS credentials were found. {HOW_TO_SIGN_IN}", {"NoCredentialsError"}),
    (
        NotPermitted,
        f"The AWS credentials are not complete: {{says}} {HOW_TO_SIGN_IN}",
        {"PartialCredentialsError"},
    ),
    (
        NotPermitted,
        f"There are no valid AWS credentials: {{says}} {HOW_TO_SIGN_IN}",
        {
            "CredentialRetrievalError",
            "LoginError",
            "MetadataRetrievalError",
            "NoAuthTokenError",
            "RefreshWithMFAUnsupportedError",
            "SSOError",
            "TokenRetrievalError",
        },
    ),
    (
        UsageError,
        "What `aws login` leaves is read by one more package: pip install 'dropbatch[login]'.",
        {"MissingDependencyException"},
    ),
    (
        UsageError,
        "No AWS region is configured. Set AWS_REGION, or region in ~/.aws/config.",
        {"NoRegionError"},
    ),
    (
        ConnectionLost,
        "AWS could not be reached, or the connection was cut off: {says}",
        {"ConnectionError", "HTTPClientError", "IncompleteReadError"},
    ),
    (
        Error,
        "What answered is not AWS; check AWS_ENDPOINT_URL and your proxy: {says}",
        {"ResponseParserError"},
    ),
    # What is left is wrong before any call: a profile, a setting, a parameter.
    (UsageError, "AWS's configuration or a name is wrong: {says}", {"BotoCoreError"}),
    (Error, "{says}", {"object"}),
)
"""What errors of botocore mean, the first that fits, by the names of their classes."""


def _explanation(error: Exception, advice: str) -> Error | None:
    # As `getpass` raises it, with which botocore asks for a code.
    if type(error) is EOFError and not error.args:
        return NotPermitted(
            "AWS wants a code (MFA), and there is no terminal on which to type it. "
            "Run `aws sts get-caller-identity` on one first: what it signs in to is "
            "remembered for an hour."
        )
    bases = type(error).__mro__
    if not {"boto3", "botocore"} & {one.__module__.partition(".")[0] for one in bases}:
        # botocore raises ValueError for an endpoint that is no URL.
        is_endpoint = isinstance(error, ValueError) and str(error).startswith(_BAD_ENDPOINT)
        return UsageError(f"{error}. Correct AWS_ENDPOINT_URL.") if is_endpoint else None
    kinds = {one.__name__ for one in bases}
    answered = error.__context__ if "Boto3Error" in kinds else error  # Copies wrap AWS's error.
    if hasattr(answered, "operation_name"):
        return _of_client(answered, advice)
    says = f"{str(error).strip().rstrip('.')[:500]}."
    made, message, _ = next(one for one in _MEANINGS if one[2] & kinds)
    return made(message.replace("{says}", says))


_BAD_ENDPOINT = ("Invalid endpoint: ", "Invalid endpoint URL")


def _of_client(error: Any, advice: str) -> Error:
    found = error.response["Error"]
    code, message = found.get("Code", ""), found.get("Message", "")
    operation, says = error.operation_name, f"{message.rstrip('.')}."
    ahead = _ahead(error) if code in _DENIED | _EXPIRED | _UNKNOWN_KEY | _SKEWED else 0.0
    if code in _SKEWED or _SKEW_WORDS.search(message) or abs(ahead) > MAX_CLOCK_SECONDS:
        by = f"{abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} AWS's"
        wrong = by if abs(ahead) > 1 else "wrong"
        return NotPermitted(
            f"AWS denied {operation} because this machine's clock is {wrong}. Set it."
        )
    if code in _EXPIRED:
        return NotPermitted(f"The AWS credentials have expired. {HOW_TO_SIGN_IN}")
    if code in _UNKNOWN_KEY or (operation in _SIGN_IN and not _fitting(message, "")):
        return NotPermitted(
            f"AWS does not accept these credentials ({code}: {says}) {HOW_TO_SIGN_IN}"
        )
    if code in _DENIED:
        return NotPermitted(f"AWS denied {operation}: {says} {_fitting(message, advice)}")
    if code in _NOT_FOUND:
        return NotFound(f"{operation}: {message or code}")
    refused = f"AWS refused {operation}: {code}: {message}"
    return ConnectionLost(refused) if code in _BUSY else Error(refused)


def _ahead(error: Any) -> float:
    """Seconds by which this machine's clock is ahead of AWS's; 0 if the answer does not say."""
    date = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0


def _fitting(message: str, advice: str) -> str:
    """What to do about a call that was denied: no policy helps against one that denies."""
    if found := _REFUSED_BY.search(message):
        return _REFUSERS[found[1]]
    return _OTHER_DENY if "explicit deny" in message else advice


def is_missing(s3: Any, bucket: str, key: str, error: Any) -> bool:
    """Whether a read failed because its object does not exist.

    S3 may answer 403 for a missing key to a caller who may not list all keys, as users may not.
    They may list this key, which decides.
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
