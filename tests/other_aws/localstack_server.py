"""Start LocalStack with the DynamoDB Local that runs on `DYNAMODB_LOCAL_PORT`.

Instead of one that it downloads.

Run by the Python of LocalStack's own environment.
"""

from localstack.runtime.main import main
from localstack.services.dynamodb.server import DynamodbServer

DynamodbServer.start_dynamodb = DynamodbServer.is_up = lambda self: True
DynamodbServer.wait_for_dynamodb = lambda self: None
main()
