"""Metrics after requests of many kinds, checked by promtool, by Prometheus' scrapes, and by the documented queries."""

import json
import math
import os
import re
import subprocess
from pathlib import Path

import pytest
import requests
from botocore.exceptions import ClientError
from certificates import certificate
from harness import ACCESS_KEY, MIB, SECRET_KEY, Prometheus, s3_client

DOCS = Path(__file__).parents[2] / "docs"
needs_prometheus = pytest.mark.skipif(not Prometheus.PROGRAMS, reason="no Prometheus: BYWASH_PROMETHEUS names its folder")
# Maximum number of series of a scrape.
MAX_SERIES = 1000


def work(server, prefix=""):
    """Two misses, a hit, a listing and an error."""
    for number in range(3):
        server.s3.put_object(Bucket="shop", Key=f"{prefix}{number}", Body=os.urandom(MIB))
    for number in [0, 0, 1]:
        server.s3.get_object(Bucket="shop", Key=f"{prefix}{number}")["Body"].read()
    server.s3.list_objects_v2(Bucket="shop")
    with pytest.raises(ClientError):
        server.s3.get_object(Bucket="shop", Key=f"{prefix}missing")


@pytest.fixture
def server(start, tmp_path):
    """A server with a disk tier, after some work."""
    server = start("--disk", f"{tmp_path}/tier:512MiB")
    server.s3.create_bucket(Bucket="shop")
    work(server)
    return server


@pytest.fixture
def prometheus(server, tmp_path):
    """Prometheus that scrapes the server, before and after further requests."""
    prometheus = Prometheus(tmp_path, server.admin)
    prometheus.scrape()
    work(server, "more-")
    prometheus.scrape(2)
    yield prometheus
    prometheus.stop()


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


def test_names_chosen_by_clients_are_not_labels(server):
    before = samples(requests.get(server.admin + "/metrics", timeout=30).text).keys()
    for number in range(300):
        # Unknown buckets, keys and operations.
        requests.get(f"{server.url}/none-{number}/key-{number}?operation-{number}", timeout=30)
    after = samples(requests.get(server.admin + "/metrics", timeout=30).text).keys()
    new = sorted(after - before)
    assert len(new) < 60 and not [name for name in new if re.search(r"(none|key|operation)-", name)], new


@needs_prometheus
def test_promtool_accepts_the_metrics(server):
    def check(metrics):
        command = [f"{Prometheus.PROGRAMS}/promtool", "check", "metrics"]
        return subprocess.run(command, input=metrics, capture_output=True, text=True, timeout=60)

    text = requests.get(server.admin + "/metrics", timeout=30).text
    checked = check(text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", ""), text
    # Negative control.
    checked = check(text.replace("# TYPE bywash_budget_limit_bytes gauge", "# TYPE bywash_budget_limit_bytes counter"))
    assert checked.returncode != 0 and "bywash_budget_limit_bytes" in checked.stderr


def metrics(server):
    return samples(requests.get(server.admin + "/metrics", timeout=30).text)


@needs_prometheus
def test_prometheus_scrapes_the_counters_of_the_server(server, prometheus):
    before = metrics(server)
    prometheus.scrape()
    scraped = {}
    for labels, value in prometheus.query('{job="bywash"}'):
        name = labels.pop("__name__")
        scraped[name, frozenset(labels.items() - {("job", "bywash"), ("instance", labels["instance"])})] = value
    after = metrics(server)
    # Other values change without requests: those of the process, points of the history.
    still = {name: float(value) for name, value in before.items() if after[name] == value and name.startswith("bywash_")}
    assert len(still) > 200
    for sample, value in still.items():
        name, _, labels = sample.partition("{")
        found = scraped[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))]
        assert found == value, sample

    get = '{operation="GetObject"}'
    counts = prometheus.query(f"sum by (cache) (bywash_endpoint_request_duration_seconds_count{get})")
    assert {labels["cache"]: value for labels, value in counts} == {"miss": 4, "hit": 2, "none": 2}
    stats = server.stats()
    for query, expected in [
        ("bywash_endpoint_requests_total", stats["endpoint"]["requests"]),
        ("sum(bywash_endpoint_responses_total)", stats["endpoint"]["requests"]),
        ("sum(bywash_endpoint_request_duration_seconds_count)", stats["endpoint"]["requests"]),
        ('bywash_bytes_total{bucket="shop"}', 6 * MIB),
        ("histogram_quantile(1, sum by (le) (bywash_endpoint_request_duration_seconds_bucket)) < 60", None),
    ]:
        ((_, value),) = prometheus.query(query)
        assert expected is None or value == expected, query


def expressions():
    """Queries of the dashboard."""
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        # Without the comparison, as there was no restart.
        yield annotation["name"], annotation["expr"].removesuffix(" > 0")


@needs_prometheus
def test_queries_of_the_dashboard_have_results(server, prometheus):
    queries = list(expressions())
    assert len(queries) > 30
    for panel, query in queries:
        for variable, value in [("$__rate_interval", "1m"), ("$instance", ".*"), ("$bucket", ".*")]:
            query = query.replace(variable, value)
        assert "$" not in query
        found = prometheus.query(query)
        assert any(math.isfinite(value) for _, value in found), (panel, query, found)


@needs_prometheus
def test_documented_alerts_are_silent_and_have_values(server, prometheus):
    rows = re.findall(r"^\| [^|]+ \| `((?:[^`|]|\\\|)+)` \|", (DOCS / "operations.md").read_text().split("## What to alert on")[1], re.M)
    assert len(rows) > 8
    for row in rows:
        alert = row.replace("\\|", "|")
        query, compared = re.subn(r" [<>=]+ [0-9.]+$", "", alert)
        assert compared == 1, alert
        assert prometheus.query(alert) == [] or "hits" in alert, alert
        if "kind=~" not in query:  # No origin failed.
            assert prometheus.query(query), query


@needs_prometheus
def test_scrape_with_tls_and_a_key(start, tmp_path):
    cert, key = certificate(tmp_path)
    settings = tmp_path / "bywash.toml"
    settings.write_text('[[key]]\naccess-key = "monitor"\nsecret-key = "env:MONITOR"\nbuckets = ["shop"]\nread-only = true\n')
    options = ["--metrics-addr", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--config", settings]
    server = start(*options, env={"MONITOR": "secret of the monitor"})
    s3 = s3_client(server.url, verify=str(cert))
    for bucket in ["shop", "private"]:
        s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key="a", Body=b"body")
        s3.get_object(Bucket=bucket, Key="a")["Body"].read()

    monitor = {"username": "monitor", "password": "secret of the monitor"}
    prometheus = Prometheus(tmp_path, server.metrics, basic_auth=monitor, tls_config={"ca_file": str(cert)})
    try:
        prometheus.scrape()
        ((labels, value),) = prometheus.query("bywash_requests_total")
        assert labels["bucket"] == "shop" and value > 0
    finally:
        prometheus.stop()

    def status(path, auth=None):
        return requests.get(server.metrics + path, auth=auth, verify=str(cert), timeout=30).status_code

    own = (ACCESS_KEY, SECRET_KEY)
    for path, auth, expected in [
        ("/metrics", own, 200),
        ("/metrics", None, 401),
        ("/metrics", ("monitor", SECRET_KEY), 401),
        ("/metrics", (ACCESS_KEY, "secret of the monitor"), 401),
        ("/healthz", None, 200),
        *[(path, own, 404) for path in ["/", "/stats", "/cache", "/write", "/series/list", "/login"]],
    ]:
        assert status(path, auth) == expected, (path, auth)
