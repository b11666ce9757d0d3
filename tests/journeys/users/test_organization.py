"""An organization whose policies deny what S3 itself would take."""

import botocore.client
import pytest
from botocore.exceptions import ClientError

from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M

WRITES = {"PutObject", "CreateMultipartUpload"}
DENIED = (
    "... is not authorized to perform: s3:PutObject with an explicit deny in a service "
    "control policy"
)


@pytest.fixture
def written(monkeypatch):
    """The functions' writes, which are denied without the header."""
    real, found = botocore.client.BaseClient._make_api_call, []

    def call(client, operation, arguments):
        if operation in WRITES and not arguments["Key"].startswith("inbox/"):
            found.append(
                (operation, arguments.get("ServerSideEncryption"), arguments.get("SSEKMSKeyId"))
            )
            if "ServerSideEncryption" not in arguments:
                raise ClientError({"Error": {"Code": "AccessDenied", "Message": DENIED}}, operation)
        return real(client, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)
    return found


def test_every_write_says_how_it_is_encrypted(world, written):
    world.upload("a.jsonl", '{"text":"y","target_lang":"es"}\n' * 3, model=M2M)
    world.settle()

    (folder,) = {
        key.rpartition("/")[0] for key in world.objects() if key.endswith("/manifest.json")
    }
    assert world.manifest(folder)["state"] == "completed"
    assert len(written) > 8
    assert {tuple(said) for _, *said in written} == {("AES256", None)}
    assert (
        world.s3.head_object(Bucket=BUCKET, Key=f"{folder}/output.jsonl")["ServerSideEncryption"]
        == "AES256"
    )
