"""`make destroy`: list what is deleted and what stays, ask, and delete the stack."""

import os
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from botocore.exceptions import ClientError

from dropbatch.cli.cloudflare import Api
from dropbatch.errors import Error
from tools import answers
from tools.account_stack import (
    DeployError,
    Stack,
    Step,
    confirmed,
    delete,
    exit_code,
    find_stack,
    next_step,
    not_now,
    physical_ids,
    settings_of,
)
from tools.deploy_worker import worker_name

SUBSCRIPTIONS = "/event_subscriptions/subscriptions"


def destroy(given: Mapping[str, str]) -> None:
    """List what is deleted and what stays, ask, and delete the stack that variables name."""
    file = answers.choose(given)
    saved = file.settings
    stack = find_stack(saved)
    if stack is None:
        raise DeployError(
            f'There is no stack "{saved["stack_name"]}" in {saved["region"]} of this account. '
            "STACK_NAME and AWS_REGION name another."
        )
    if next_step(stack) is Step.WAIT:
        raise not_now(stack)
    names = physical_ids(saved, stack, "Bucket", "Table", "ApiToken")
    print(what_stays(stack, names, file.path.name))
    if not confirmed(f'Delete the stack "{stack.name}" ({stack.id})?'):
        raise DeployError("Nothing was deleted.")
    for line in remove_events(saved, stack):
        print(line)
    delete(saved, stack)
    print("Deleted. The list above shows what stays and how to remove it.")


def remove_events(saved: dict[str, Any], stack: Stack) -> list[str]:
    """Remove the queue that the functions made at Cloudflare; return what to do if it stays.

    The token is deleted with the stack, so nobody can do it afterwards without another one.
    """
    if "TableName" not in stack.outputs or stack.parameters.get("Transport") == "worker":
        return []
    try:
        variables, token = settings_of(saved, stack)
        account = variables["CLOUDFLARE_ACCOUNT_ID"]
        url = f"{variables['WORKERS_AI_BASE_URL']}/accounts/{account}"
        _remove_queue(Api(url, account, token), variables["EVENTS_QUEUE_NAME"])
    except (Error, ClientError, KeyError) as error:
        left = "The queue of completion events at Cloudflare, if there is one, stays"
        return [f"{left}: {error!r}. Delete it in Cloudflare's dashboard."]
    return []


def _remove_queue(api: Api, name: str) -> None:
    """Delete the subscriptions of the queue of this name, then the queue."""
    found = _called(api, "GET", f"/queues?name={name}")
    queue_id = next((one["queue_id"] for one in found if one["queue_name"] == name), None)
    if queue_id is None:
        return
    print("Removing the queue of completion events at Cloudflare ...", flush=True)
    for one in _called(api, "GET", f"{SUBSCRIPTIONS}?queue_id={queue_id}&per_page=100"):
        if one["destination"]["queue_id"] == queue_id:
            _called(api, "DELETE", f"{SUBSCRIPTIONS}/{one['id']}")
    _called(api, "DELETE", f"/queues/{queue_id}")


def _called(api: Api, method: str, path: str) -> Any:
    reply = api.call(method, path)
    if reply.status != HTTPStatus.OK:
        raise Error(f"HTTP {reply.status}, code {reply.code}: {reply.message}")
    return reply.result or []


def what_stays(stack: Stack, names: dict[str, str], answers_file: str) -> str:
    """What deleting the stack removes, and what it leaves with how to remove that."""
    region = stack.id.split(":")[3]
    at = f"aws dynamodb %s --region {region} --table-name {names.get('Table')}"
    empty = (
        f'b = boto3.resource("s3", "{region}").Bucket("{names.get("Bucket")}"); '
        "b.object_versions.delete(); b.delete()"
    )
    left = {
        "Bucket": f"""the bucket, with uploads and results. To remove it with all its content:
    .local/sam/bin/python -c 'import boto3; {empty}'""",
        "Table": f"""the table, the record of every job. To remove it:
    {at % "update-table"} --no-deletion-protection-enabled
    {at % "delete-table"}""",
        "ApiToken": """the secret with the token, for up to 30 days (Secrets Manager's recovery
  window). Revoke the token at Cloudflare if nothing else uses it""",
    }
    lines = [f"- {left[name]}" for name in left if name in names]
    if stack.parameters.get("Transport") == "worker":
        name = worker_name(stack.name, region)
        lines.append(f"- the Worker: (cd worker && npx wrangler delete --name {name})")
    return f"""
Deleting the stack "{stack.name}" removes its functions, logs, queues with the messages in them,
schedule, alarms, dashboard, roles and the users' policy. Batches that are pending at Cloudflare are
not collected. It leaves:
{chr(10).join(lines)}
- the functions' packages in the SAM CLI's own bucket (stack aws-sam-cli-managed-default);
- {answers_file} on this machine, with your answers.
"""


def main() -> int:
    return exit_code(lambda: destroy(os.environ), "A deletion that has begun goes on.")


if __name__ == "__main__":
    sys.exit(main())
