"""Connections of clients that stop sending are closed, and leave no objects."""

import concurrent.futures
import time

from harness import MIB, head_of_put, keys

# The server's own limits are at most a minute.
SLOW_SECONDS = 75


def test_stalled_body_endless_head_and_silent_connection_are_closed(start, moto):
    """Over both origins concurrently, because the test only waits."""
    moto.s3.create_bucket(Bucket="slow")
    servers = [start(data_dir=start.folder / "root"), start("s3://slow", env=moto.environment())]
    servers[0].s3.create_bucket(Bucket="slow")
    sent = []
    for server in servers:
        server.s3.put_object(Bucket="slow", Key="old", Body=b"old")
        for key in ("old", "new"):
            sent.append((server, head_of_put(server.presigned("put_object", "slow", key), MIB) + b"just this"))
        sent.append((server, b"PUT /half-a-head HTTP/1.1\r\nHost: a\r\nX-"))
        sent.append((server, b""))
    with concurrent.futures.ThreadPoolExecutor(len(sent)) as pool:
        for seconds, response in pool.map(send_and_wait, sent):
            assert seconds < SLOW_SECONDS
            assert response == b"" or b"<Code>RequestTimeout</Code>" in response or b" 408 " in response, response
    for server in servers:
        assert keys(server.s3, "slow") == ["old"]
        assert server.s3.get_object(Bucket="slow", Key="old")["Body"].read() == b"old"


def send_and_wait(server_and_bytes):
    """Returns the bytes until the server closed the connection, and the time until then."""
    server, head = server_and_bytes
    began, response = time.monotonic(), b""
    with server.connect() as bare:
        bare.sendall(head)
        while more := bare.recv(4096):
            response += more
    return time.monotonic() - began, response
