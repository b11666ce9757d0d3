"""Judge the policies on standard input, JSON by name; print each finding.

The exit code is 1 if there is any.
"""

import json
import sys

from parliament import analyze_policy_string

ACCEPTED = {
    ("RESOURCE_STAR", "cloudwatch:DescribeAlarms"),
    ("RESOURCE_STAR", "sqs:SendMessage"),
}
"""CloudWatch lists alarms by a prefix only to those who may see all."""

wrong = 0
policies = json.load(sys.stdin)
for name, policy in policies.items():
    for finding in analyze_policy_string(json.dumps(policy)).findings:
        details = finding.detail if isinstance(finding.detail, list) else [finding.detail]
        if all((finding.issue, str(detail)) in ACCEPTED for detail in details):
            continue
        wrong += 1
        sys.stdout.write(f"{name}: {finding.issue}: {finding.detail} {finding.location}\n")
sys.stdout.write(f"{len(policies)} policies, {wrong} findings\n")
sys.exit(bool(wrong))
