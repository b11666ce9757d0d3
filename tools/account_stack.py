"""The stack in a real AWS account: find it, decide what its status requires, delete it."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError, WaiterError
from botocore.utils import JSONFileCache

from dropbatch.client import aws
from dropbatch.errors import Error
from local.processes import LocalAwsError

ROOT = Path(__file__).resolve().parent.parent
INTERRUPTED = 130
"""The exit code of a shell's command that Ctrl-C ends."""
ADVICE = "docs/configuration.md says what whoever deploys must be allowed to do."


class DeployError(Exception):
    """Why something was not done; the message is for the user."""


class Step(Enum):
    """What a stack's status requires."""

    CREATE = "create"
    """No stack exists: ask the questions, then create it."""
    RECREATE = "recreate"
    """A stack that cannot be updated: delete it first, then create it."""
    UPDATE = "update"
    WAIT = "wait"
    REPAIR = "repair"
    """A person must return it to a status from which it can be updated."""


NOT_THERE = {"REVIEW_IN_PROGRESS", "DELETE_COMPLETE"}
"""A change set that was created but not executed has no resource."""
NEVER_RAN = {"CREATE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED"}
"""A stack with one of these was never created completely: what it left behind holds no data."""


@dataclass(frozen=True)
class Stack:
    name: str
    id: str
    """Its ARN, which still names it after it has been deleted."""
    status: str
    parameters: dict[str, str]
    """Hidden ones are asterisks."""
    outputs: dict[str, str]


def session(saved: Mapping[str, Any]) -> boto3.Session:
    """The session of a profile and a region; those that are not saved are the environment's."""
    return _session(saved.get("profile"), saved.get("region"))


@cache
def _session(profile: str | None, region: str | None) -> boto3.Session:
    # Where the SAM CLI looks.
    return aws.sign_in(region=region, profile=profile, copy=JSONFileCache())


def account_of(saved: Mapping[str, Any]) -> str:
    return str(session(saved).client("sts").get_caller_identity()["Account"])


def find_stack(saved: dict[str, Any]) -> Stack | None:
    """The stack of the saved name; None if it does not exist."""
    try:
        client = session(saved).client("cloudformation")
        (found,) = client.describe_stacks(StackName=saved["stack_name"])["Stacks"]
    except ClientError as error:
        # CloudFormation's code for "no such stack".
        if error.response["Error"]["Code"] == "ValidationError":
            return None
        raise
    parameters = {
        one["ParameterKey"]: one.get("ParameterValue", "") for one in found.get("Parameters", [])
    }
    outputs = {one["OutputKey"]: one["OutputValue"] for one in found.get("Outputs", [])}
    return Stack(found["StackName"], found["StackId"], found["StackStatus"], parameters, outputs)


def next_step(stack: Stack | None) -> Step:
    if stack is None or stack.status in NOT_THERE:
        return Step.CREATE
    if stack.status.endswith("_IN_PROGRESS"):
        return Step.WAIT
    if stack.status in NEVER_RAN | {"DELETE_FAILED"}:
        return Step.RECREATE
    # After a failed update without rollback, the next update goes on from there.
    is_usable = stack.status.endswith("_COMPLETE") or stack.status == "UPDATE_FAILED"
    return Step.UPDATE if is_usable else Step.REPAIR


def _resources(saved: Mapping[str, Any], stack: Stack) -> list[dict[str, Any]]:
    client = session(saved).client("cloudformation")
    pages = client.get_paginator("list_stack_resources").paginate(StackName=stack.id)
    return [one for page in pages for one in page["StackResourceSummaries"]]


def physical_ids(saved: Mapping[str, Any], stack: Stack, *logical_ids: str) -> dict[str, str]:
    """The physical ids of those of a stack's resources that exist."""
    return {
        one["LogicalResourceId"]: one["PhysicalResourceId"]
        for one in _resources(saved, stack)
        if one["LogicalResourceId"] in logical_ids and one.get("PhysicalResourceId")
    }


def delete(saved: Mapping[str, Any], stack: Stack) -> None:
    """Delete a stack and wait; `DeployError` names what could not be deleted, and why."""
    client = session(saved).client("cloudformation")
    print(f'Deleting the stack "{stack.name}" ...', flush=True)
    client.delete_stack(StackName=stack.id)
    try:
        client.get_waiter("stack_delete_complete").wait(
            StackName=stack.id, WaiterConfig={"Delay": 5, "MaxAttempts": 240}
        )
    except WaiterError as error:
        failed = [
            f"\n  {one['LogicalResourceId']}: {one.get('ResourceStatusReason', 'no reason given')}"
            for one in _resources(saved, stack)
            if one["ResourceStatus"] == "DELETE_FAILED"
        ]
        raise DeployError(
            f'The stack "{stack.name}" could not be deleted completely:'
            f"{''.join(failed) or f' {error}'}\n(A policy that is still attached to a user or "
            "role, such as UserPolicy, must be detached first.)"
        ) from error


def settings_of(saved: Mapping[str, Any], stack: Stack) -> tuple[dict[str, str], str]:
    """The submit function's environment, and the token or the Worker's secret that it reads."""
    client, function = session(saved).client, stack.outputs["SubmitFunctionName"]
    found = client("lambda").get_function_configuration(FunctionName=function)
    settings = dict(found["Environment"]["Variables"])
    is_worker = settings["TRANSPORT"] == "worker"
    name = "WORKER_SECRET_ARN" if is_worker else "CLOUDFLARE_API_TOKEN_SECRET_ARN"
    return settings, _secret_value(client("secretsmanager"), settings[name])


def exit_code(command: Callable[[], None], interrupted: str) -> int:
    """Run a command; return its exit code. What stops it is printed, Ctrl-C as `interrupted`."""
    try:
        with aws.explained(advice=ADVICE):
            command()
    except KeyboardInterrupt:
        print(f"\nInterrupted. {interrupted}", file=sys.stderr)
        return INTERRUPTED
    except (DeployError, LocalAwsError, Error) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _secret_value(client: Any, secret: str) -> str:
    """A secret's value, empty if it has none. One that is being deleted is restored."""
    try:
        answer = client.get_secret_value(SecretId=secret)
    except client.exceptions.ResourceNotFoundException:
        return ""
    except client.exceptions.InvalidRequestException:
        client.restore_secret(SecretId=secret)
        print(f"The secret {secret} was scheduled for deletion; it is restored.", flush=True)
        answer = client.get_secret_value(SecretId=secret)
    return str(answer.get("SecretString", "")).strip()


def confirmed(question: str) -> bool:
    try:
        return input(f"{question} [y/N]: ").strip().lower() in {"y", "yes"}
    except EOFError:  # Standard input is closed: nobody can answer.
        return False


def not_now(stack: Stack) -> DeployError:
    """The error for a stack that is being changed or must be repaired."""
    if next_step(stack) is Step.WAIT:
        return DeployError(
            f'CloudFormation is still working on the stack "{stack.name}" ({stack.status}). '
            "Nothing was done; try again when it has finished."
        )
    return DeployError(
        f'The stack "{stack.name}" is in {stack.status} and cannot be updated. Its events in the '
        "CloudFormation console show why. Repair it there (for UPDATE_ROLLBACK_FAILED: Stack "
        "actions, Continue update rollback), then try again."
    )
