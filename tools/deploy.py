"""`make deploy`: the stack on a real AWS account.

The first time it asks a few questions (`tools.answers`) and shows what it will create
(`tools.plan`). It builds the functions, runs `sam deploy`, checks the Cloudflare token with one
free call, puts it in the stack's secret, and runs the smoke job (`tools.smoke_job`). The first step
depends only on the stack's status in CloudFormation: a first deployment that failed or was declined
can be repeated. The token is printed nowhere and passed to no other program.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

import dropbatch.client.stack
from dropbatch.cli.cloudflare import DEFAULT_BASE_URL, Api, check_token
from dropbatch.client import aws
from dropbatch.errors import Error
from local.template import template
from tools import answers, deploy_worker, plan, smoke_job
from tools.account_stack import (
    NEVER_RAN,
    ROOT,
    DeployError,
    Stack,
    Step,
    confirmed,
    delete,
    exit_code,
    find_stack,
    next_step,
    not_now,
    session,
    settings_of,
)
from tools.answers import AnswersFile

SAM = ROOT / ".local/sam/bin/sam"
HIDDEN = "****"
"""What CloudFormation shows of a parameter with NoEcho."""


def _sam(*arguments: str, **more: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != answers.TOKEN}
    subprocess.run([SAM, *arguments], cwd=ROOT, env={**environment, **more}, check=True)


def deploy(given: Mapping[str, str]) -> tuple[dict[str, Any], Stack, str]:
    """Build and deploy; return the saved answers, the stack, and the token if it was asked for."""
    answers.named_parameters(given)  # A wrong one is told before AWS is called.
    file = answers.choose(given)
    saved = file.settings
    answers.refuse_gone(answers.parameters_of(saved), file.path.name)
    stack = find_stack(saved)
    step = next_step(stack)
    if stack and step in {Step.WAIT, Step.REPAIR}:
        raise not_now(stack)
    if stack and step is Step.UPDATE:
        token, parameters = "", _changed(given, file, stack)
    else:
        first = _prepare(given, file)
        token, parameters = first.token, first.parameters
        if stack and step is Step.RECREATE:
            _recreate(saved, stack)
    processor = os.environ.get("DROPBATCH_BUILD") or parameters.get("Architecture", "arm64")
    _sam("build", DROPBATCH_BUILD=processor)
    place = ["--config-file", str(file.path), "--region", saved["region"]]
    profile = ["--profile", saved["profile"]] if "profile" in saved else []
    _sam("deploy", "--no-fail-on-empty-changeset", *place, *profile)
    return saved, _deployed(file, find_stack(saved)), token


def _prepare(given: Mapping[str, str], file: AnswersFile) -> answers.Answers:
    """Ask what is not given, show what will be created, and save the answers."""
    chosen = _with_good_token(answers.ask(given, file.settings))
    plan.check_rate(chosen.parameters)
    limit = _limit(file.settings, chosen.parameters)
    print(plan.describe(chosen, file.settings, limit), flush=True)
    if sys.stdin.isatty() and not confirmed("Create it?"):
        raise DeployError("Nothing was created and nothing is billed.")
    chosen.parameters.update(_worker_url(chosen.parameters, file.settings))
    answers.save(file, chosen.parameters)
    return chosen


def _with_good_token(chosen: answers.Answers) -> answers.Answers:
    """The answers with a token that Cloudflare takes, as far as it can be asked now."""
    if not chosen.token:
        return chosen
    base_url = chosen.parameters.get("WorkersAiBaseUrl") or DEFAULT_BASE_URL
    try:
        wrong = check_token(Api(base_url, chosen.parameters["CloudflareAccountId"], chosen.token))
    except Error:  # It is asked again when the stack is up.
        return chosen
    if not wrong:
        return chosen
    if not sys.stdin.isatty():
        raise DeployError(f"{wrong} Nothing was created and nothing is billed.")
    print(wrong, file=sys.stderr)
    return _with_good_token(replace(chosen, token=answers.ask_token({})))


def _recreate(saved: dict[str, Any], stack: Stack) -> None:
    print(f'The stack "{stack.name}" is in {stack.status}: it can only be created again.')
    if stack.status in NEVER_RAN:
        print("It was never created completely, so it holds no data.")
    if not confirmed("Delete it?"):
        raise DeployError("Nothing was changed. Delete the stack yourself, or run this again.")
    delete(saved, stack)


def _changed(given: Mapping[str, str], file: AnswersFile, stack: Stack) -> dict[str, str]:
    """The parameters of a stack that is updated, after saving those that are given.

    The others keep the stack's values, not those of the file: they may have been changed in
    CloudFormation since.
    """
    saved, before = file.settings, answers.parameters_of(file.settings)
    named = answers.named_parameters(given)
    kept = {
        name: now
        for name, now in stack.parameters.items()
        if name in before.keys() - named.keys() and now not in {before[name], HIDDEN}
    }
    wanted = before | kept | named
    if given.get(answers.TOKEN):
        answers.ask_token(given)  # One of a wrong form is refused before anything is built.
    wanted |= _worker_url({**stack.parameters, **wanted}, saved)
    parameters = {**stack.parameters, **wanted}
    plan.check_rate(parameters)
    print(f'Updating the stack "{stack.name}" in {saved["region"]}, {saved["aws_account"]}.')
    for name, now in kept.items():
        print(
            f"  {name}: {now or '(empty)'} stays; {file.path.name} had "
            f"{before[name] or '(empty)'}. PARAMETERS changes it."
        )
    for name, value in wanted.items():
        now = stack.parameters.get(name, "")
        if now not in {value, HIDDEN} and name in template()["Parameters"]:
            print(f"  {name}: {now or '(empty)'} -> {value or '(empty)'}")
    print(_limit(saved, parameters), flush=True)
    answers.save(file, wanted)
    return parameters


def _limit(saved: dict[str, Any], parameters: Mapping[str, str]) -> str:
    """What the account's Lambda concurrency limit means for the stack."""
    client = session(saved).client("lambda")
    try:
        found = client.get_account_settings()["AccountLimit"]["UnreservedConcurrentExecutions"]
    except ClientError as error:
        code = error.response["Error"]["Code"]
        return f"Lambda: the account's concurrency limit could not be read ({code})."
    worker = parameters.get("Transport") == "worker"
    return plan.about_limit(found, client.meta.region_name, worker=worker)


def _worker_url(parameters: Mapping[str, str], saved: dict[str, Any]) -> dict[str, str]:
    """The parameter WorkerUrl of a stack that calls a Worker and names none: it is deployed."""
    if parameters.get("Transport") != "worker" or parameters.get("WorkerUrl"):
        return {}
    name = deploy_worker.worker_name(saved["stack_name"], saved["region"])
    return {"WorkerUrl": deploy_worker.deploy_code(name, parameters.get("CloudflareAccountId", ""))}


def _deployed(file: AnswersFile, stack: Stack | None) -> Stack:
    if stack is None or stack.status == "REVIEW_IN_PROGRESS":
        raise DeployError(
            "The change set was not executed: nothing was created and nothing is billed. "
            f"Your answers are in {file.path.name}; make deploy asks again."
        )
    if next_step(stack) is not Step.UPDATE:
        raise DeployError(
            f'The stack "{stack.name}" is not deployed ({stack.status}). Run the '
            "same command again."
        )
    return stack


def _checked(stack: Stack, settings: dict[str, str], token: str) -> tuple[str, str]:
    """What is wrong with the token, and why it could not be checked; empty if nothing is."""
    try:
        if settings["TRANSPORT"] == "worker":
            return _checked_worker(stack, settings, token), ""
        base_url = settings["WORKERS_AI_BASE_URL"].rstrip("/")
        return check_token(Api(base_url, settings["CLOUDFLARE_ACCOUNT_ID"], token)), ""
    except Error as error:
        return "", str(error)


def _checked_worker(stack: Stack, settings: dict[str, str], secret: str) -> str:
    """What is wrong with the Worker's secret; one that it does not have yet is given to it."""
    url = settings["WORKER_URL"].rstrip("/")
    if not deploy_worker.check_worker(url, secret):
        return ""
    print("Giving the Worker the stack's secret ...", flush=True)
    name = deploy_worker.worker_name(stack.name, stack.id.split(":")[3])
    deploy_worker.give_secret(name, settings["CLOUDFLARE_ACCOUNT_ID"], secret)
    return deploy_worker.wait_until_accepted(url, secret)


def _settle_token(
    given: Mapping[str, str],
    saved: dict[str, Any],
    stack: Stack,
    settings: dict[str, str],
    kept: str,
) -> str:
    """Put a token that is accepted in the stack's own secret; return why it could not be checked.

    A variable's token replaces the kept one, if it is accepted. If none is, the secret stays.
    """
    secret = stack.outputs.get("ApiTokenSecretArn")
    token = (given.get(answers.TOKEN, "").strip() if secret else "") or kept
    if secret and not token:
        token = answers.ask_token(given)
    while (found := _checked(stack, settings, token))[0] and secret and sys.stdin.isatty():
        print(found[0], file=sys.stderr)
        token = answers.ask_token({})
    wrong, unchecked = found
    if wrong:
        stays = " and keeps its token" if kept and token != kept else ""
        raise DeployError(f"The stack is up{stays}, but the check of the token failed. {wrong}")
    if secret and token != kept:
        client = session(saved).client("secretsmanager")
        client.put_secret_value(SecretId=secret, SecretString=token)
    return unchecked


def closing_words(settings: dict[str, str], email: str, *, smoke: bool, unchecked: str = "") -> str:
    """What the check proved, what it did not, and what to do next.

    A smoke job that follows proves more. `unchecked` says why the token could not be checked.
    """
    account, bucket = settings["CLOUDFLARE_ACCOUNT_ID"], settings["BUCKET_NAME"]
    checked = f"The token is valid, and may read Workers AI in account {account}."
    if settings["TRANSPORT"] == "worker":
        checked = "The Worker accepts the shared secret."
    elif unchecked:
        checked = f"Its token could not be checked: {unchecked} The first job shows it."
    elif not smoke:
        checked += (
            ' Not checked: that it may run models (permission "Workers AI - Edit"). If it may not, '
            "status.json of the first job waits for token_refused."
        )
    mail = f"\nAlarms go to {email} once the link in the e-mail from AWS was opened."
    return f"""
The stack is up. {checked}{mail if email else ""}
Completion events (docs/operations.md): {next(dropbatch.client.stack.events_of(settings, {}))[1]}

Drop a file:
  aws s3 cp requests.jsonl s3://{bucket}/inbox/@cf/baai/bge-small-en-v1.5/requests.jsonl
The answers appear under s3://{bucket}/results/."""


def _deploy_and_check() -> None:
    given = dict(os.environ)
    saved, stack, token = deploy(given)
    given |= {answers.TOKEN: token} if token else {}
    try:
        settings, kept = settings_of(saved, stack)
        unchecked = _settle_token(given, saved, stack, settings, kept)
    except (BotoCoreError, ClientError) as error:
        raise DeployError(
            f"The stack is up, but its token could not be read or written: {error}"
        ) from error
    smoke = given.get("SMOKE", "yes") != "no"
    email = stack.parameters.get("NotificationEmail", "")
    print(closing_words(settings, email, smoke=smoke, unchecked=unchecked), flush=True)
    if stack.name != dropbatch.client.stack.DEFAULT_NAME:
        where = f"DROPBATCH_STACK={stack.name} AWS_REGION={saved['region']}"
        print(f"For the command line: export {where}", flush=True)
    if smoke:
        key = stack.parameters.get("KmsKeyArn", "")
        client = aws.Clients("", saved.get("region"), saved.get("profile"), key)
        made = dropbatch.client.stack.Stack(
            stack.name, stack.outputs["BucketName"], stack.outputs, client
        )
        print(smoke_job.run(made), flush=True)


def main() -> int:
    try:
        return exit_code(_deploy_and_check, "The same command goes on.")
    except subprocess.CalledProcessError as error:
        print("It was not deployed. When the cause is fixed, run the same command again.")
        return error.returncode  # The SAM CLI has printed why.


if __name__ == "__main__":
    sys.exit(main())
