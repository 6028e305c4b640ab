"""The unit of systemd and the container file: their start commands run as they would there, without systemd or a container engine.

Same user, same folders with the same rights, same limits; only paths lead below a folder of the test, and ports are free ones.
"""

import json
import os
import re
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
import requests
import yaml
from harness import MIB, Process, clean_environment, s3_client, until

PACKAGING = Path(__file__).parents[2] / "packaging"
# The unit's user does not exist here: an unused id.
UNIT_USER = 64999

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed: run as root")


def unit():
    """Returns the settings of the unit by name, of repeated names the last."""
    lines = (PACKAGING / "bywash.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]\w*=", line))


def container():
    """Returns the instructions of the container file by name."""
    lines = (PACKAGING / "Containerfile").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines if re.match(r"[A-Z]+ ", line))


@pytest.fixture
def root():
    """A folder in place of `/`, whose programs any user may run."""
    folder = Path(tempfile.mkdtemp(prefix="bywash-root-"))
    folder.chmod(0o755)
    (folder / "usr/bin").mkdir(parents=True)
    shutil.copy(os.environ["BYWASH_BIN"], folder / "usr/bin/bywash")
    (folder / "usr/bin/bywash").chmod(0o755)
    (folder / "etc/bywash").mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


def owned(folder, mode, user):
    folder.mkdir(parents=True)
    folder.chmod(mode)
    os.chown(folder, user, user)
    return folder


def below(root, command):
    """Returns the command with its paths below `root`."""
    return [f"{root}{word}" if word.startswith("/") else word for word in command]


def run(root, command, user, files=1024):
    """Starts a command as an unprivileged user, with a limit of open files."""
    # At most the limit of this machine.
    files = min(int(files), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    limits = ["prlimit", f"--nofile={files}:{files}"]
    rights = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    environment = {"PATH": "/usr/bin:/bin", "BYWASH_LOG": "info"} | {
        name: value for name, value in clean_environment().items() if name == "TZ"
    }
    return Process(["env", "--chdir=/", *limits, *rights, *command], environment, root / "log")


def stop(server):
    assert server.stop() == 0, server.seen


def use(url, data, verify=None):
    """Writes and reads an object with the access key that the server created."""
    keys = json.loads((data / "credentials.json").read_text())
    s3 = s3_client(url, access_key=keys["access_key"], secret_key=keys["secret_key"], verify=verify)
    s3.create_bucket(Bucket="first")
    s3.put_object(Bucket="first", Key="a", Body=bytes(3 * MIB))
    assert len(s3.get_object(Bucket="first", Key="a")["Body"].read()) == 3 * MIB


def test_unit_starts_as_its_user_within_its_limits(root):
    settings = unit()
    user = UNIT_USER
    data = owned(root / "var/lib" / settings["StateDirectory"], int(settings["StateDirectoryMode"], 8), user)
    logs = owned(root / "var/log" / settings["LogsDirectory"], int(settings["LogsDirectoryMode"], 8), user)
    config = (PACKAGING / "bywash.toml").read_text()
    (root / "etc/bywash/bywash.toml").write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", config))
    command = below(root, shlex.split(settings["ExecStart"]))
    server = run(root, command, user, settings["LimitNOFILE"])
    sums = server.wait_for(r"resident_bytes=(\d+) socket_bytes=(\d+)").groups()
    limit = int(settings["MemoryMax"].removesuffix("G")) << 30
    assert sum(map(int, sums)) <= limit, "the limit of the control group is below what the server may take"
    url, admin = server.wait_for(r"^ready s3=(\S+) admin=(\S+)").groups()
    use(url, data)
    status = Path(f"/proc/{server.child.pid}/status").read_text()
    assert re.search(rf"^Uid:\t{user}\t{user}", status, re.M) and re.search(r"^CapEff:\t0+$", status, re.M)
    files = [path for path in data.rglob("*") if path.is_file()]
    assert files and all(path.stat().st_uid == user for path in files)
    assert stat.S_IMODE((data / "credentials.json").stat().st_mode) == 0o600
    # ExecReload: the log is reopened, and the server continues.
    os.rename(logs / "access.log", logs / "access.log.1")
    server.child.send_signal(signal.SIGHUP)
    until("the log is there again", lambda: (logs / "access.log").exists(), 30)
    assert requests.get(admin + "/healthz", timeout=30).text == "ok\n"
    stop(server)
    # A server on a backup of the data folder has the same access key and objects.
    keys = (data / "credentials.json").read_text()
    shutil.copytree(data, root / "copy")
    subprocess.run(["chown", "-R", f"{user}:{user}", root / "copy"], check=True)
    shutil.rmtree(data)
    os.rename(root / "copy", data)
    again = run(root, command, user, settings["LimitNOFILE"])
    url, _ = again.wait_for(r"^ready s3=(\S+) admin=(\S+)").groups()
    found = json.loads(keys)
    s3 = s3_client(url, access_key=found["access_key"], secret_key=found["secret_key"])
    assert s3.head_object(Bucket="first", Key="a")["ContentLength"] == 3 * MIB
    stop(again)


def test_container_starts_as_its_user(root):
    file = container()
    user = int(file["USER"].split(":")[0])
    data = owned(root / file["VOLUME"].removeprefix("/"), 0o700, user)
    ca, certificate = root / "etc/bywash/tls.key", root / "etc/bywash/tls.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", ca, "-out", certificate],
        check=True,
        capture_output=True,
    )
    os.chown(ca, user, user)
    name, folder = file["ENV"].split("=")
    tls = ["--tls-cert", "/etc/bywash/tls.crt", "--tls-key", "/etc/bywash/tls.key"]
    command = below(root, json.loads(file["ENTRYPOINT"]) + json.loads(file["CMD"]) + tls)
    ports = ["--s3-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0", "--gcs-addr", "off"]
    command = ["env", f"{name}={root}{folder}", *command, *ports]
    server = run(root, command, user)
    url, _ = server.wait_for(r"^ready s3=(\S+) admin=(\S+)").groups()
    assert url.startswith("https://")
    use(url, data, verify=str(certificate))
    stop(server)


def test_composed_service_is_healthy(root):
    file = container()
    user = int(file["USER"].split(":")[0])
    owned(root / "data", 0o700, user)
    service = yaml.safe_load((PACKAGING / "compose.yaml").read_text())["services"]["bywash"]
    assert service["volumes"] == [f"data:{file['VOLUME']}"]
    # Free ports in place of the container's own.
    arguments = re.sub(r"0\.0\.0\.0:\d+", "0.0.0.0:0", service["command"])
    settings = service["environment"] | {"BYWASH_DATA_DIR": f"{root}/data", "BYWASH_ADMIN_ADDR": "127.0.0.1:0"}
    variables = [f"{name}={value}" for name, value in settings.items()]
    command = below(root, json.loads(file["ENTRYPOINT"]) + shlex.split(arguments))
    server = run(root, ["env", *variables, *command], user)
    url = server.wait_for(r"^ready s3=(\S+)").group(1).replace("0.0.0.0", "127.0.0.1")
    assert requests.get(f"{url}/minio/health/live", timeout=30).status_code == 200
    kind, *check = service["healthcheck"]["test"]
    assert kind == "CMD"
    subprocess.run(below(root, check), check=True, stdout=subprocess.DEVNULL, timeout=30)
    s3 = s3_client(url, access_key=settings["BYWASH_ACCESS_KEY"], secret_key=settings["BYWASH_SECRET_KEY"])
    s3.put_object(Bucket="first", Key="a", Body=b"a")
    assert s3.get_object(Bucket="first", Key="a")["Body"].read() == b"a"
    stop(server)
    assert subprocess.run(below(root, check), capture_output=True, timeout=30).returncode != 0
