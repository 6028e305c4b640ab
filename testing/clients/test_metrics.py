"""The metrics after requests of many kinds, checked by Prometheus' own tool."""

import os
import re
import subprocess

import pytest
import requests
from botocore.exceptions import ClientError
from harness import MIB

# Folder of Debian's programs `promtool` and `prometheus`.
PROMETHEUS = os.environ.get("BYWASH_PROMETHEUS")
# A bound for a server that is scraped every few seconds.
MAX_SERIES = 1000


@pytest.fixture
def server(start):
    """A server after hits, misses, errors and listings."""
    server = start()
    server.s3.create_bucket(Bucket='shop')
    for number in range(3):
        server.s3.put_object(Bucket="shop", Key=f"{number}", Body=os.urandom(MIB))
    for number in [0, 0, 1]:
        server.s3.get_object(Bucket="shop", Key=f"{number}")["Body"].read()
    server.s3.list_objects_v2(Bucket="shop")
    with pytest.raises(ClientError):
        server.s3.get_object(Bucket="shop", Key="missing")
    return server


def samples(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_metrics_have_histograms_and_statuses(server):
    text = requests.get(server.admin + "/metrics", timeout=30).text
    found = samples(text)
    duration = "bywash_endpoint_request_duration_seconds"
    for cache, count in [("miss", 2), ("hit", 1), ("none", 1)]:
        assert found[f'{duration}_count{{operation="GetObject",cache="{cache}"}}'] == str(count), text
    assert float(found[f'{duration}_sum{{operation="PutObject",cache="none"}}']) > 0
    assert found['bywash_endpoint_responses_total{status="404"}'] == "1"
    assert float(found['bywash_origin_request_duration_seconds_count{request="read"}']) >= 2
    assert found['bywash_origin_errors_total{bucket="shop",kind="not_found"}'] != "0"
    assert float(found["process_resident_memory_bytes"]) > MIB
    assert len(found) < MAX_SERIES


def test_names_chosen_by_clients_are_no_labels(server):
    before = samples(requests.get(server.admin + "/metrics", timeout=30).text).keys()
    for number in range(300):
        # Buckets, keys and operations that do not exist.
        requests.get(f"{server.url}/none-{number}/key-{number}?operation-{number}", timeout=30)
    after = samples(requests.get(server.admin + "/metrics", timeout=30).text).keys()
    new = sorted(after - before)
    assert len(new) < 60 and not [name for name in new if re.search(r"(none|key|operation)-", name)], new


@pytest.mark.skipif(not PROMETHEUS, reason="no promtool: BYWASH_PROMETHEUS names its folder")
def test_promtool_finds_no_fault(server):
    def check(metrics):
        command = [f"{PROMETHEUS}/promtool", "check", "metrics"]
        return subprocess.run(command, input=metrics, capture_output=True, text=True, timeout=60)

    text = requests.get(server.admin + "/metrics", timeout=30).text
    checked = check(text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", ""), text
    # Negative control.
    checked = check(text.replace("# TYPE bywash_budget_limit_bytes gauge", "# TYPE bywash_budget_limit_bytes counter"))
    assert checked.returncode != 0 and "bywash_budget_limit_bytes" in checked.stderr
