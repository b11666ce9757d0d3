"""The fault proxy's latencies: each service's calls take as long as they are given, and are counted."""

import asyncio
import json
import random
import statistics
import time

import pytest

from local.fault_proxy import Latency, Proxy

HEAD = (
    "{method} /bucket/key HTTP/1.1\r\nHost: aws\r\n{target}Content-Length: {size}\r\n"
    "Authorization: AWS4-HMAC-SHA256 Credential=test/20261121/eu-west-1/{service}/aws4_request\r\n\r\n"
)


async def upstream(reader, writer):
    """Answers every call with two bytes."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(size)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    except asyncio.IncompleteReadError:
        writer.close()
        await writer.wait_closed()


async def exchange(port, request):
    """One call by itself: its body, and the seconds it took."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    writer.close()
    await writer.wait_closed()
    return body, time.monotonic() - began


def call(service, method="PUT", operation="", size=0):
    target = f"X-Amz-Target: DynamoDB_20120810.{operation}\r\n" if operation else ""
    return HEAD.format(method=method, target=target, size=size, service=service).encode() + b"x" * size


def control(method, body=b""):
    return f"{method} /_latency HTTP/1.1\r\nHost: aws\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def with_proxy(*requests):
    """Each request through one proxy, one after another."""

    async def run():
        behind = await asyncio.start_server(upstream, "127.0.0.1", 0)
        proxy = Proxy(behind.sockets[0].getsockname()[1])
        front = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        port = front.sockets[0].getsockname()[1]
        answers = [await exchange(port, request) for request in requests]
        for server in (front, behind):
            server.close()
            await server.wait_closed()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        await asyncio.sleep(0)  # The last connections close.
        return answers

    return asyncio.run(run())


def test_latency_is_added_and_calls_counted():
    latencies = {"s3": {"seconds": 0.1, "bytes_per_second": 10_000}, "dynamodb": {"seconds": 0.2}}
    _, put, query, (told, _) = with_proxy(
        control("PUT", json.dumps(latencies).encode()),
        call("s3", size=998),
        call("dynamodb", method="POST", operation="Query", size=2_000),
        control("GET"),
    )

    assert put[1] >= 0.2
    assert query[1] >= 0.2
    assert json.loads(told) == {"operations": {"s3 PUT": 1, "dynamodb Query": 1}}


def test_latency_that_means_nothing_is_refused():
    ((told, _),) = with_proxy(control("PUT", b'{"s3": {"second": 1}}'))
    assert "second" in json.loads(told)["error"]


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_spread_is_around_middle(spread):
    random.seed(1)
    drawn = sorted(Latency(0.02, spread=spread).draw(10**6) for _ in range(2_001))
    assert statistics.median(drawn) == pytest.approx(0.02, rel=0.05)
    assert (drawn[100] < 0.016) == (drawn[-100] > 0.025) == (spread > 0)
