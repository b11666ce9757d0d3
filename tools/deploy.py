"""`make deploy`: the stack on a real AWS account.

The first time it asks a few questions (`tools.answers`) and shows what it will create
(`tools.plan`). It builds the functions, runs `sam deploy`, puts the Cloudflare token in the stack's
secret, checks it with one free call, and runs the smoke job (`tools.smoke_job`). The first step
depends only on the stack's status in CloudFormation: a first deployment that failed or was declined
can be repeated. The token is printed nowhere and passed to no other program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

import dropbatch.client.stack
from dropbatch.cli.cloudflare import DEFAULT_BASE_URL, Api, check_token
from dropbatch.client import aws
from dropbatch.errors import Error
from local.template import template
from tools import answers, answers_files, deploy_worker, plan, smoke_job
from tools.account_stack import (
    NEVER_RAN,
    ROOT,
    DeployError,
    Stack,
    Step,
    account_of,
    confirmed,
    delete,
    exit_code,
    find_stack,
    next_step,
    not_now,
    physical_ids,
    secret_value,
    session,
)
from tools.closing_words import closing_words
from tools.worker_check import check_worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.answers_files import AnswersFile

SAM = ROOT / ".local/sam/bin/sam"
HIDDEN = "****"
"""What CloudFormation shows of a parameter with NoEcho."""


def _sam(*arguments: str, **more: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != answers.TOKEN}
    subprocess.run([SAM, *arguments], cwd=ROOT, env={**environment, **more}, check=True)


def _recreate(saved: dict[str, Any], stack: Stack) -> None:
    """Delete a stack that cannot be updated, after asking.

    Raises:
        DeployError: the user declined, or it could not be deleted.
    """
    print(
        f'The stack "{stack.name}" is in {stack.status}: it cannot be updated, only deleted '
        "and created again."
    )
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


def _limit(saved: dict[str, Any], parameters: Mapping[str, str]) -> str:
    """What the account's Lambda concurrency limit means for the stack."""
    client = session(saved).client("lambda")
    try:
        found = client.get_account_settings()["AccountLimit"]["UnreservedConcurrentExecutions"]
    except ClientError as error:
        return (
            "Lambda: the account's concurrency limit could not be read "
            f"({error.response['Error']['Code']})."
        )
    worker = parameters.get("Transport") == "worker"
    return plan.about_limit(found, client.meta.region_name, worker=worker)


def _prepare(given: Mapping[str, str], file: AnswersFile) -> answers.Answers:
    """Ask what is not given, show what will be created, and save the answers.

    Raises:
        DeployError: an answer is missing or wrong, or the user declined.
    """
    chosen = answers.ask(given, file.settings)
    _check_parameters(chosen.parameters, file.settings)
    limit = _limit(file.settings, chosen.parameters)
    print(plan.describe(chosen, file.settings, limit), flush=True)
    if sys.stdin.isatty() and not confirmed("Create it?"):
        raise DeployError("Nothing was created and nothing is billed.")
    chosen.parameters.update(_worker_url(chosen.parameters, file.settings))
    answers_files.save(file, chosen.parameters)
    return chosen


def _check_parameters(parameters: Mapping[str, str], saved: Mapping[str, Any]) -> None:
    """Check what CloudFormation does not.

    That the transport has so many calls, and Lambda takes the environment.

    Raises:
        DeployError: there are too many calls; or the environment is too large, with what makes it
            so.
    """
    if wrong := plan.wrong_rate(parameters):
        raise DeployError(wrong)
    size, longest = plan.environment(parameters, saved)
    if size > plan.MAX_ENVIRONMENT_BYTES:
        raise DeployError(
            f"The functions' environment would have {size:,} bytes, and Lambda takes "
            f"{plan.MAX_ENVIRONMENT_BYTES:,}. "
            f"Use shorter values; the longest are {longest}."
        )


def _worker_url(parameters: Mapping[str, str], saved: dict[str, Any]) -> dict[str, str]:
    """The parameter WorkerUrl of a stack that calls a Worker and names none.

    The Worker is deployed.
    """
    if parameters.get("Transport") != "worker" or parameters.get("WorkerUrl"):
        return {}
    name = deploy_worker.worker_name(saved["stack_name"], saved["region"])
    return {"WorkerUrl": deploy_worker.deploy_code(name, parameters.get("CloudflareAccountId", ""))}


def deploy(given: Mapping[str, str]) -> tuple[dict[str, Any], Stack]:
    """Build and deploy.

    Return the saved answers and the deployed stack, whose secret has its token.

    Args:
        given: the variables that answer questions.

    Raises:
        DeployError: no stack is deployed.
        CalledProcessError: the SAM CLI failed and printed why.
    """
    file = answers_files.choose(given, lambda saved: _asked_region(given, saved))
    file = replace(file, settings={**file.settings, "aws_account": account_of(file.settings)})
    saved = file.settings
    answers.refuse_gone(answers_files.parameters_of(saved), file.path.name)
    stack = find_stack(saved)
    step = next_step(stack)
    if stack and step in {Step.WAIT, Step.REPAIR}:
        raise not_now(stack)
    token = ""
    if stack and step is Step.UPDATE:
        chosen = _changed(given, file, stack)
    else:
        prepared = _prepare(given, file)
        token, chosen = prepared.token, prepared.parameters
        if stack and step is Step.RECREATE:
            _recreate(saved, stack)
    _sam(
        "build",
        DROPBATCH_BUILD=os.environ.get("DROPBATCH_BUILD") or chosen.get("Architecture", "arm64"),
    )
    place = ["--config-file", str(file.path), "--region", saved["region"]]
    profile = ["--profile", saved["profile"]] if "profile" in saved else []
    _sam("deploy", "--no-fail-on-empty-changeset", *place, *profile)
    stack = _deployed(file, find_stack(saved))
    _put_token(given, saved, stack, token)
    return saved, stack


def _asked_region(given: Mapping[str, str], saved: Mapping[str, Any]) -> str:
    if sys.stdin.isatty():
        print("A few questions; everything else has a default.", flush=True)
    return answers.ask_region(given, saved)


def _changed(given: Mapping[str, str], file: AnswersFile, stack: Stack) -> dict[str, str]:
    """The parameters of a stack that is updated, after saving those that are given.

    The others keep their values.

    The stack's values are kept, not those of the file: they may have been changed in CloudFormation
    since.
    """
    saved, before = file.settings, answers_files.parameters_of(file.settings)
    named = answers.named_parameters(given)
    changed = {
        name: value for name, value in _differing(before, stack).items() if name not in named
    }
    wanted = before | changed | named
    if given.get(answers.TOKEN):
        answers.ask_token(given)  # One of a wrong form is refused before anything is built.
    wanted |= _worker_url({**stack.parameters, **wanted}, saved)
    parameters = {**stack.parameters, **wanted}
    _check_parameters(parameters, saved)
    print(
        f'Updating the stack "{stack.name}" in {saved["region"]}, AWS account '
        f"{saved['aws_account']}."
    )
    for name, value in changed.items():
        print(
            f"  {name}: {_shown(value)} stays; {file.path.name} had {_shown(before[name])}. "
            "PARAMETERS changes it."
        )
    for name, value in wanted.items():
        if (now := stack.parameters.get(name, "")) != value and name in template()["Parameters"]:
            print(f"  {name}: {_shown(now)} -> {_shown(value)}")
    print(_limit(saved, parameters), flush=True)
    answers_files.save(file, wanted)
    return parameters


def _differing(parameters: Mapping[str, str], stack: Stack) -> dict[str, str]:
    """The stack's values of those parameters that it has otherwise.

    What CloudFormation hides is not known.
    """
    return {
        name: stack.parameters[name]
        for name, value in parameters.items()
        if name in template()["Parameters"]
        and stack.parameters.get(name, value) not in {value, HIDDEN}
    }


def _shown(value: str) -> str:
    return value or "(empty)"


def _put_token(given: Mapping[str, str], saved: dict[str, Any], stack: Stack, token: str) -> None:
    """Put the token in the stack's secret, unless it has one already and none was just given.

    Raises:
        DeployError: the secret has no token, and none is given.
    """
    secret = stack.outputs.get("ApiTokenSecretArn")
    if not secret:
        return  # The stack needs no token, or has a secret of the user's own.
    client = session(saved).client("secretsmanager")
    kept = secret_value(client, secret)
    if not token and not kept:
        token = answers.ask_token(given)
    if token and token != kept:
        client.put_secret_value(SecretId=secret, SecretString=token)


def _deployed(file: AnswersFile, stack: Stack | None) -> Stack:
    """The stack, if it is deployed.

    Raises:
        DeployError: it is not: its change set was declined, or no stack has this name.
    """
    if stack is None:
        raise DeployError(
            f'There is no stack "{file.settings["stack_name"]}" whose token can be '
            "checked. If you deployed under "
            f"another name or in another region, put stack_name and region in {file.path.name}."
        )
    if stack.status == "REVIEW_IN_PROGRESS":
        raise DeployError(
            "The change set was not executed: nothing was created and nothing is billed. "
            "Run make deploy again when "
            "you are ready; it asks the same questions, with your answers filled in, and "
            "asks for the token."
        )
    if next_step(stack) is not Step.UPDATE:
        raise DeployError(
            f'The stack "{stack.name}" is not deployed ({stack.status}). Run the '
            "same command again."
        )
    return stack


def _deployed_settings(saved: dict[str, Any], stack: Stack) -> tuple[dict[str, str], str]:
    """The submit function's environment, and the token or the Worker's secret that it reads."""
    account = session(saved)
    function = account.client("lambda").get_function_configuration(
        FunctionName=stack.outputs["SubmitFunctionName"]
    )
    settings: dict[str, str] = function["Environment"]["Variables"]
    name = (
        "WORKER_SECRET_ARN"
        if settings["TRANSPORT"] == "worker"
        else "CLOUDFLARE_API_TOKEN_SECRET_ARN"
    )
    return settings, secret_value(account.client("secretsmanager"), settings[name])


def _what_is_wrong(stack: Stack, settings: dict[str, str], token: str) -> str:
    """What the free call finds wrong with the token or the Worker's secret; empty if nothing is.

    Raises:
        Error: the token could not be checked.
    """
    if settings["TRANSPORT"] != "worker":
        base_url = settings["WORKERS_AI_BASE_URL"].rstrip("/")
        api = Api(base_url, settings["CLOUDFLARE_ACCOUNT_ID"], token)
        try:
            wrong = check_token(api)
        except Error as error:
            is_own = base_url != DEFAULT_BASE_URL
            raise Error(
                f"{error}{f' Is WorkersAiBaseUrl ({base_url}) right?' if is_own else ''}"
            ) from error
        return wrong and (
            f"{wrong} The bare token belongs in the stack's secret; the functions "
            "read it immediately."
        )
    url = settings["WORKER_URL"].rstrip("/")
    if not check_worker(url, token):
        return ""
    print("Giving the Worker the stack's secret ...", flush=True)
    name = deploy_worker.worker_name(stack.name, stack.id.split(":")[3])
    deploy_worker.give_secret(name, settings["CLOUDFLARE_ACCOUNT_ID"], token)
    return deploy_worker.wait_until_accepted(url, token)


def _checked(stack: Stack, settings: dict[str, str], token: str) -> tuple[str, str]:
    """What is wrong with the token, and why it could not be checked; empty if nothing is."""
    try:
        return _what_is_wrong(stack, settings, token), ""
    except Error as error:
        return "", str(error)


def _unconfirmed_email(saved: dict[str, Any], stack: Stack) -> str:
    """The address that has not confirmed its subscription to the alarms; empty if there is none."""
    topic = physical_ids(saved, stack, "Notifications").get("Notifications")
    if not topic:
        return ""
    try:
        found = (
            session(saved)
            .client("sns")
            .list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        )
    except (BotoCoreError, ClientError):
        # An unnecessary reminder is better than none.
        return stack.parameters.get("NotificationEmail", "")
    pending = [
        each["Endpoint"] for each in found if each["SubscriptionArn"] == "PendingConfirmation"
    ]
    return pending[0] if pending else ""


def _deploy_and_check() -> None:
    given = answers.variables(os.environ)
    saved, stack = deploy(given)
    try:
        settings, token = _deployed_settings(saved, stack)
        unconfirmed = _unconfirmed_email(saved, stack)
    except (BotoCoreError, ClientError) as error:
        raise DeployError(
            f"The stack is up, but its token could not be read to check it: {error}"
        ) from error
    wrong, unchecked = _checked(stack, settings, token)
    offered = given.get(answers.TOKEN, "").strip()
    if "ApiTokenSecretArn" in stack.outputs and offered not in {"", token}:
        kept_wrong, (wrong, unchecked) = wrong, _checked(stack, settings, offered)
        if wrong and not kept_wrong:
            raise DeployError(
                f"The stack is up and keeps its token; {answers.TOKEN} was not "
                f"put in its place. {wrong}"
            )
        token = offered if not wrong else token
        _put_token(given, saved, stack, token)
    while wrong:
        if "ApiTokenSecretArn" not in stack.outputs or not sys.stdin.isatty():
            raise DeployError(f"The stack is up, but the check of the token failed. {wrong}")
        print(wrong, file=sys.stderr)
        token = answers.ask_token({})
        _put_token(given, saved, stack, token)
        wrong, unchecked = _checked(stack, settings, token)
    smoke = given.get("SMOKE", "yes") != "no"
    print(
        closing_words(settings, unconfirmed, smoke=smoke, unchecked=unchecked),
        flush=True,
    )
    if stack.name != dropbatch.client.stack.DEFAULT_NAME:
        print(
            f"For the command line: export DROPBATCH_STACK={stack.name} "
            f"AWS_REGION={saved['region']}",
            flush=True,
        )
    if smoke:
        client = aws.encrypting(session(saved).client, stack.parameters.get("KmsKeyArn", ""))
        made = dropbatch.client.stack.Stack(
            stack.name, stack.outputs["BucketName"], stack.outputs, client
        )
        print(smoke_job.run(made), flush=True)


def main() -> int:
    """Deploy and check; return the exit code."""
    try:
        return exit_code(_deploy_and_check, "The same command goes on.")
    except subprocess.CalledProcessError as error:
        print(
            "It was not deployed. When the cause is fixed, run the same command again.",
            file=sys.stderr,
        )
        return error.returncode  # The SAM CLI has printed why.


if __name__ == "__main__":
    sys.exit(main())
