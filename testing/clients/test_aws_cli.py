"""The unmodified AWS command line."""

import os
import re
import subprocess

import pytest
import requests
from harness import ACCESS_KEY, MIB, REGION, SECRET_KEY, clean_environment, file_sha256, payload


@pytest.fixture(scope="module")
def aws(served, tmp_path_factory):
    """Returns a function that runs `aws ...`, checks its exit code and returns its output."""
    home = tmp_path_factory.mktemp("home")
    env = clean_environment() | {
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": served.server.url,
        "AWS_MAX_ATTEMPTS": "1",
    }

    def run(*arguments, code=0, **more):
        command = [os.environ["BYWASH_AWS"], *[str(argument) for argument in arguments]]
        done = subprocess.run(command, env=env | more, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


def test_200_mib_up_and_down(served, aws, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    with open(source, "wb") as file:
        for number in range(200):
            file.write(payload(MIB, number))
    aws("s3", "cp", "--only-show-errors", source, f"s3://{served.bucket}/cli/big")
    aws("s3", "cp", "--only-show-errors", f"s3://{served.bucket}/cli/big", back)
    assert file_sha256(back) == file_sha256(source)


def test_cp_ls_mv_rm(served, aws, tmp_path):
    (tmp_path / "small").write_bytes(b"small")
    where = f"s3://{served.bucket}/verbs"
    aws("s3", "cp", tmp_path / "small", f"{where}/a/small")
    aws("s3", "cp", f"{where}/a/small", f"{where}/b")
    aws("s3", "mv", f"{where}/b", f"{where}/c")
    listing = aws("s3", "ls", f"{where}/")
    assert re.search(r"PRE a/$", listing, re.MULTILINE)
    assert re.search(r" 5 c$", listing, re.MULTILINE)
    assert " b" not in listing
    assert aws("s3", "cp", f"{where}/c", "-") == "small"
    assert re.search(r"Total Objects: 2", aws("s3", "ls", "--recursive", "--summarize", f"{where}/"))
    aws("s3", "rm", "--recursive", f"{where}/")
    aws("s3", "ls", f"{where}/", code=1)
    assert "404" in aws("s3", "cp", f"{where}/c", "-", code=1)


def test_sync_uploads_only_changed_files(served, aws, tmp_path):
    tree = tmp_path / "tree"
    for name in ("one", "deep/two", "deep/er/three"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
        # `sync` uploads files newer than their object, and some origins have times in whole seconds.
        os.utime(tree / name, (1_000_000_000, 1_000_000_000))
    where = f"s3://{served.bucket}/sync"
    assert aws("s3", "sync", "--no-progress", tree, where).count("upload:") == 3
    assert aws("s3", "sync", "--no-progress", tree, where) == ""
    back = tmp_path / "back"
    aws("s3", "sync", "--no-progress", where, back)
    assert {path.relative_to(back).as_posix(): path.read_text() for path in back.rglob("*") if path.is_file()} == {
        name: name for name in ("one", "deep/two", "deep/er/three")
    }


def test_presign(served, aws):
    served.put("cli/presigned", b"by url")
    url = aws("s3", "presign", f"s3://{served.bucket}/cli/presigned").strip()
    assert requests.get(url, timeout=30).content == b"by url"
    assert requests.get(url.replace("Signature=", "Signature=a"), timeout=30).status_code == 403


def test_wrong_secret_is_rejected(served, aws):
    assert "SignatureDoesNotMatch" in aws("s3", "ls", f"s3://{served.bucket}", code=255, AWS_SECRET_ACCESS_KEY="no")


def test_create_and_remove_buckets(served, aws):
    if served.origin != "folder":
        pytest.skip("only a root folder can make buckets")
    aws("s3", "mb", "s3://made-by-cli")
    served.s3.put_object(Bucket="made-by-cli", Key="a", Body=b"x")
    assert "BucketNotEmpty" in aws("s3", "rb", "s3://made-by-cli", code=1)
    aws("s3", "rb", "--force", "s3://made-by-cli")
    assert "made-by-cli" not in aws("s3", "ls")


def test_bywash_env_configures_a_shell(start, tmp_path):
    """The first start creates credentials; `eval "$(bywash env)"` exports them for any client."""
    server = start(credentials=False)
    script = (
        'set -e; eval "$("$BYWASH" env --data-dir "$DATA")"; "$AWS" s3 mb s3://first; '
        'echo hello | "$AWS" s3 cp - s3://first/hello; "$AWS" s3 cp s3://first/hello -'
    )
    env = clean_environment() | {
        "HOME": str(tmp_path),
        "BYWASH": os.environ["BYWASH_BIN"],
        "AWS": os.environ["BYWASH_AWS"],
        "DATA": str(server.data_dir),
    }
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("hello\n")
