"""What `make deploy` says at its end: what was checked, what was not, and what to do next."""

from __future__ import annotations

from dropbatch.client import events


def closing_words(
    settings: dict[str, str],
    unconfirmed_email: str,
    *,
    smoke: bool,
    unchecked: str = "",
) -> str:
    """The closing text: what the check proved, what it did not, and what to do next.

    Args:
        settings: the submit function's environment.
        unconfirmed_email: the address whose subscription is not confirmed yet; empty if none.
        smoke: whether a smoke job follows, which proves more.
        unchecked: why the token could not be checked; empty if it was.
    """
    account, bucket = settings["CLOUDFLARE_ACCOUNT_ID"], settings["BUCKET_NAME"]
    checked = f"""Checked with one free call: the token is valid, and it may read Workers AI in
account {account}."""
    if settings["TRANSPORT"] == "worker":
        checked = "Checked with one free call: the Worker accepts the shared secret."
    elif unchecked:
        checked = f"""Its token could not be checked: {unchecked}
{"The smoke job shows whether it works." if smoke else "The first job shows whether it works."}"""
    elif not smoke:
        checked += """ Not checked: that it may run models (permission "Workers AI - Edit"). Only a
submit would show that, and it is billed. If it may not, status.json of the first job waits for
token_refused."""
    email = f"""
Confirm the alarms' subscription: AWS has sent an email to {unconfirmed_email}. Nothing else is
sent there until you open its link "Confirm subscription"."""
    return f"""
The stack is up. {checked}
{email if unconfirmed_email else ""}
Completion events (docs/operations.md): {next(events.told(settings, {}))[1]}

Drop a file:
  aws s3 cp requests.jsonl s3://{bucket}/inbox/@cf/baai/bge-small-en-v1.5/requests.jsonl
The answers appear under s3://{bucket}/results/."""
