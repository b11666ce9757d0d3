#!/bin/bash
# The event of each job's end goes to the queue job-events and to a webhook.
# Needs LOADER_URL and LOADER_KEY of the webhook, and in ROLE_ARN a role that events.amazonaws.com may assume, with
# events:InvokeApiDestination.
set -eo pipefail

QUEUE_URL=$(aws sqs create-queue --queue-name job-events --query QueueUrl --output text)
QUEUE_ARN=$(aws sqs get-queue-attributes --queue-url "$QUEUE_URL" --attribute-names QueueArn --query Attributes.QueueArn --output text)
RULE_ARN=$(aws events put-rule --name job-events --event-pattern '{"source":["dropbatch"]}' --query RuleArn --output text)

jq -n --arg queue "$QUEUE_ARN" --arg rule "$RULE_ARN" '{Policy: ({Version: "2012-10-17", Statement: [{
  Effect: "Allow", Principal: {Service: "events.amazonaws.com"}, Action: "sqs:SendMessage", Resource: $queue,
  Condition: {ArnEquals: {"aws:SourceArn": $rule}}}]} | tojson)}' > policy.json
aws sqs set-queue-attributes --queue-url "$QUEUE_URL" --attributes file://policy.json

CONNECTION_ARN=$(aws events create-connection --name loader --authorization-type API_KEY --auth-parameters \
  '{"ApiKeyAuthParameters":{"ApiKeyName":"x-api-key","ApiKeyValue":"'"$LOADER_KEY"'"}}' --query ConnectionArn --output text)
# A file, because the first version of the AWS CLI fetches what an address on its command line names.
jq -n --arg connection "$CONNECTION_ARN" --arg url "$LOADER_URL" \
  '{Name: "loader", ConnectionArn: $connection, InvocationEndpoint: $url, HttpMethod: "POST"}' > api.json
API_ARN=$(aws events create-api-destination --cli-input-json file://api.json --query ApiDestinationArn --output text)

aws events put-targets --rule job-events --targets "Id=queue,Arn=$QUEUE_ARN" "Id=api,Arn=$API_ARN,RoleArn=$ROLE_ARN"
