"""Google's Python client uploads through a proxy with seeded faults: each object is exact, or the client has an error."""

import os

import pytest
from gcs_faults import FalseSuccess, Plan, Soak

UPLOADS = 100
SEED = int(os.environ.get("BYWASH_SEED", "1"))


@pytest.fixture(scope="module")
def soak(tmp_path_factory):
    soak = Soak(tmp_path_factory.mktemp("gcs-faults"))
    yield soak
    assert soak.stop() == 0


def test_uploads_under_faults_are_exact_or_errors(soak):
    for seed in range(SEED, SEED + UPLOADS):
        soak.run(seed)
    print(soak.report())
    # Most are stored although their connections broke, some could not be, and each fault happened.
    assert soak.counts["exact"] > UPLOADS / 2 and soak.counts["exact"] < UPLOADS
    for fault in ["cut request", "cut response", "respond", "replace", "delay", "kill"]:
        assert soak.proxy.seen[fault] > 0, soak.report()


def test_judge_finds_another_object(soak):
    """What a false success would be: bytes, a generation or an absence that the client does not know of."""
    plan = Plan(SEED)
    plan.faults, plan.old, plan.way, plan.content = [], None, "string", b"content"
    target = f"/upload/storage/v1/b/faults/o?uploadType=media&name={plan.key}"
    blob, failure = soak.upload(plan)
    assert soak.judge(plan, blob, failure) == "exact"
    soak.ask("POST", target, data=b"another").raise_for_status()
    with pytest.raises(FalseSuccess, match="others"):
        soak.judge(plan, blob, None)
    with pytest.raises(FalseSuccess, match="no upload sent"):
        soak.judge(plan, None, OSError("broken"))
    soak.ask("POST", target, data=b"content").raise_for_status()
    with pytest.raises(FalseSuccess, match="generation"):
        soak.judge(plan, blob, None)
    soak.ask("DELETE", f"/storage/v1/b/faults/o/{plan.key}").raise_for_status()
    with pytest.raises(FalseSuccess, match="others"):
        soak.judge(plan, blob, None)
