"""`make deploy`: the stack on a real AWS account.

It builds the functions, runs `sam deploy` (guided the first time), and checks the Cloudflare token with one free call.
The first step depends only on the stack's status in CloudFormation: a first deployment that failed or was declined can
be repeated. The check reads the token from the stack's secret, which the functions use too. The token is not printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from local.account_stack import (
    ANSWERS,
    DEFAULTS,
    NEVER_RAN,
    ROOT,
    DeployError,
    Stack,
    Step,
    confirmed,
    delete,
    find_stack,
    next_step,
    not_now,
    physical_ids,
    saved_answers,
    session,
)
from local.token_check import check_token, check_worker

SAM = ROOT / ".local/sam/bin/sam"
ANSWERS_HEADER = """# From `make deploy`: the defaults of samconfig.toml, and your answers. Git ignores this file.
version = 0.1

"""


def _architecture(saved: dict[str, Any]) -> str:
    """The processor in the saved answers; the template's default is arm64."""
    overrides = saved.get("parameter_overrides", "")
    text = overrides if isinstance(overrides, str) else " ".join(overrides)
    chosen = re.search(r'Architecture"?="?(arm64|x86_64)', text)
    return chosen[1] if chosen else "arm64"


def _sam(*arguments: str, **environment: str) -> None:
    subprocess.run([SAM, *arguments], cwd=ROOT, env={**os.environ, **environment}, check=True)


def _recreate(saved: dict[str, Any], stack: Stack) -> None:
    """Delete a stack that cannot be updated, after asking.

    Raises:
        DeployError: the user declined, or it could not be deleted.
    """
    print(f'The stack "{stack.name}" is in {stack.status}: it cannot be updated, only deleted and created again.')
    if stack.status in NEVER_RAN:
        print("It was never created completely, so it holds no data.")
    if not confirmed("Delete it?"):
        raise DeployError("Nothing was changed. Delete the stack yourself, or run this again.")
    names = physical_ids(saved, stack, "Table")
    delete(saved, stack)
    if stack.status in NEVER_RAN and "Table" in names:
        _delete_empty_table(saved, names["Table"])


def _delete_empty_table(saved: dict[str, Any], table: str) -> None:
    """Delete the protected table that a failed creation left behind; a table with items stays."""
    client = session(saved).client("dynamodb")
    try:
        if client.scan(TableName=table, Limit=1)["Items"]:
            print(f"The table {table} is not empty and stays.")
            return
        client.update_table(TableName=table, DeletionProtectionEnabled=False)
        client.get_waiter("table_exists").wait(TableName=table)
        client.delete_table(TableName=table)
    except client.exceptions.ResourceNotFoundException:
        return  # The rollback deleted it.
    print(f"Deleted the empty table {table}, which the failed deployment had left behind.")


def deploy() -> tuple[dict[str, Any], Stack]:
    """Build and deploy; return the saved answers and the deployed stack.

    Raises:
        DeployError: no stack is deployed.
        CalledProcessError: the SAM CLI failed and printed why.
    """
    saved = saved_answers()
    stack = find_stack(saved)
    step = next_step(stack)
    if stack and step in {Step.WAIT, Step.REPAIR}:
        raise not_now(stack)
    if stack and step is Step.RECREATE:
        _recreate(saved, stack)
        stack = None
    updates = stack is not None and step is Step.UPDATE
    built = _architecture(saved)
    if stack and updates and "parameter_overrides" not in saved:
        built = stack.parameters.get("Architecture", built)  # Deployed from elsewhere: its parameters stay as they are.
    _sam("build", DROPBATCH_BUILD=built)
    if updates:
        _deploy_with_answers()
    else:
        if not ANSWERS.exists():
            ANSWERS.write_text(ANSWERS_HEADER + DEFAULTS.read_text().partition("\n\n")[2])
        print(
            f"\nThe first deployment: a few questions. The answers are saved in {ANSWERS.name}, which git ignores; the "
            "token is not among them.\n"
        )
        _sam("deploy", "--guided", "--config-file", str(ANSWERS))
    saved = saved_answers()
    stack = find_stack(saved)
    if stack and next_step(stack) is Step.UPDATE and (wanted := stack.parameters.get("Architecture", built)) != built:
        print(f"\nThe functions run on {wanted} but were built for {built}: building and deploying again.\n")
        _sam("build", DROPBATCH_BUILD=wanted)
        _deploy_with_answers()
        stack = find_stack(saved)
    return saved, _deployed(saved, stack)


def _deploy_with_answers() -> None:
    """`sam deploy` without questions; parameters without an answer keep their values."""
    config = ("--config-file", str(ANSWERS)) if ANSWERS.exists() else ()
    _sam("deploy", "--no-fail-on-empty-changeset", *config)


def _deployed(saved: dict[str, Any], stack: Stack | None) -> Stack:
    """The stack, if it is deployed.

    Raises:
        DeployError: it is not: its change set was declined, or no stack has this name.
    """
    if stack is None:
        raise DeployError(
            f'There is no stack "{saved["stack_name"]}" whose token can be checked. If you deployed under another name '
            f"or in another region without saving the answers, put stack_name and region in {ANSWERS.name}."
        )
    if stack.status == "REVIEW_IN_PROGRESS":
        raise DeployError(
            "The change set was not executed: nothing was created and nothing is billed. Run make deploy again when "
            "you are ready; it asks the same questions, with your answers filled in, and asks for the token."
        )
    if next_step(stack) is not Step.UPDATE:
        raise DeployError(f'The stack "{stack.name}" is not deployed ({stack.status}). Run make deploy again.')
    return stack


def _deployed_settings(saved: dict[str, Any], stack: Stack) -> tuple[dict[str, str], str]:
    """The submit function's environment, and the token or the Worker's secret that it reads."""
    account = session(saved)
    function = account.client("lambda").get_function_configuration(FunctionName=stack.outputs["SubmitFunctionName"])
    settings: dict[str, str] = function["Environment"]["Variables"]
    name = "WORKER_SECRET_ARN" if settings["TRANSPORT"] == "worker" else "CLOUDFLARE_API_TOKEN_SECRET_ARN"
    secret = account.client("secretsmanager").get_secret_value(SecretId=settings[name])
    return settings, secret.get("SecretString", "")


def _what_is_wrong(settings: dict[str, str], token: str) -> str:
    """What the free call finds wrong with the token or the Worker's secret; empty if nothing is."""
    if settings["TRANSPORT"] == "worker":
        return check_worker(settings["WORKER_URL"].rstrip("/"), token)
    return check_token(settings["WORKERS_AI_BASE_URL"].rstrip("/"), settings["CLOUDFLARE_ACCOUNT_ID"], token)


def closing_words(settings: dict[str, str], unconfirmed_email: str) -> str:
    """The closing text: what the check proved, what it did not, and what to do next.

    Args:
        settings: the submit function's environment.
        unconfirmed_email: the address whose subscription is not confirmed yet; empty if none.
    """
    bucket = settings["BUCKET_NAME"]
    email = f"""
Confirm the alarms' subscription: AWS has sent an email to {unconfirmed_email}. Nothing else is sent there
until you open its link "Confirm subscription".
"""
    checked = f"""Checked with one free call: the token is valid, and it may read Workers AI in account
{settings["CLOUDFLARE_ACCOUNT_ID"]}. Not checked: that it may run models (permission "Workers AI - Edit"). Only a submit
would show that, and it is billed. If it may not, status.json of the first job has token_refused in waiting_for."""
    if settings["TRANSPORT"] == "worker":
        checked = "Checked with one free call: the Worker accepts the shared secret."
    return f"""
The stack is up. {checked}
{email if unconfirmed_email else ""}
Drop a file:
  aws s3 cp requests.jsonl s3://{bucket}/inbox/@cf/baai/bge-small-en-v1.5/requests.jsonl
The answers appear under s3://{bucket}/results/."""


def _unconfirmed_email(saved: dict[str, Any], stack: Stack) -> str:
    """The address that has not confirmed its subscription to the alarms; empty if there is none."""
    topic = physical_ids(saved, stack, "Notifications").get("Notifications")
    if not topic:
        return ""
    try:
        found = session(saved).client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    except (BotoCoreError, ClientError):
        return stack.parameters.get("NotificationEmail", "")  # An unnecessary reminder is better than none.
    pending = [each["Endpoint"] for each in found if each["SubscriptionArn"] == "PendingConfirmation"]
    return pending[0] if pending else ""


def _deploy_and_check() -> None:
    saved, stack = deploy()
    try:
        settings, token = _deployed_settings(saved, stack)
        unconfirmed = _unconfirmed_email(saved, stack)
    except (BotoCoreError, ClientError) as error:
        raise DeployError(f"The stack is up, but its token could not be read to check it: {error}") from error
    if wrong := _what_is_wrong(settings, token):
        raise DeployError(f"The stack is up, but the check of the token failed. {wrong}")
    print(closing_words(settings, unconfirmed))


def main() -> int:
    """Deploy and check; return the exit code."""
    try:
        _deploy_and_check()
    except DeployError as error:
        print(error, file=sys.stderr)
        return 1
    except (BotoCoreError, ClientError) as error:
        print(f"AWS rejected a call or could not be reached: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print("It was not deployed. When the cause is fixed, run make deploy again.", file=sys.stderr)
        return error.returncode  # The SAM CLI has printed why.
    return 0


if __name__ == "__main__":
    sys.exit(main())
