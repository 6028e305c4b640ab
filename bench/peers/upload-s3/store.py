"""moto as an S3 store with one bucket, until its input ends."""

import logging
import sys

import boto3
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
address = "{}:{}".format(*server.get_host_and_port())
boto3.client(
    "s3",
    endpoint_url=f"http://{address}",
    aws_access_key_id="bench",
    aws_secret_access_key="bench",
    region_name="us-east-1",
).create_bucket(Bucket="bench")
print(f"ready {address}", flush=True)
sys.stdin.read()
