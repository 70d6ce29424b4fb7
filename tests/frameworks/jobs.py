"""The jobs of scripts/test-frameworks and scripts/test-follow: frameworks, and lives of their trainers beside stepvault."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from shared import CACHE, TAG, kill, pids_of, python_of, wait_until

TRAINERS = Path(__file__).resolve().parent
ROOT = TRAINERS.parent.parent
# How long a start of a trainer may take on a busy machine.
START_SECONDS = 180
# How stepvault is there: `stepvault agent`, `stepvault run`, or the Python package with its callback.
MODES = ["agent", "run", "callback"]
# The file that somebody adds to an older step.
NOTE = "NOTES.md"


@dataclass
class Framework:
    name: str
    trainer: str
    packages: list
    environment: str = "torch"
    variants: tuple = ("",)
    every: int = 3
    until: int = 120
    # A step of training, in seconds, in addition to the computation.
    seconds: float = 0.25
    # How far a loss may be from that of the undisturbed run; 0 is exact.
    tolerance: float = 0.0
    # What the framework itself prints after some resumes.
    prints: str = "$^"
    # Whether stepvault's profile says that the user names the step to resume from.
    is_told: bool = False
    # The variants for which there is a callback of the Python package, or whose trainer announces its saves.
    callbacks: tuple = ()
    # Settings of the run for stepvault, as TOML.
    run: str = ""
    config: str = ""

    def modes(self, variant):
        return [*MODES[:2], *(MODES[2:] if variant in self.callbacks else [])]

    def title(self, variant):
        return f"{self.name}/{variant}" if variant else self.name


FRAMEWORKS = [
    Framework(
        "transformers", "hf_trainer", ["transformers", "torch"], variants=("plain", "best"),
        callbacks=("plain", "best"),
    ),
    Framework("trl", "trl_sft", ["trl", "peft"], variants=("full", "lora"), callbacks=("full", "lora")),
    Framework("accelerate", "accelerate_loop", ["accelerate"], callbacks=("",)),
    Framework(
        "lightning", "lightning_fit", ["lightning"], variants=("plain", "last", "logs", "best"),
        callbacks=("plain", "last", "logs", "best"),
    ),
    Framework(
        "dcp", "torch_dcp", ["torch"], variants=("plain", "fsdp1", "fsdp2"), tolerance=1e-4, is_told=True,
        callbacks=("plain",),
    ),
    Framework(
        "orbax", "orbax_flax", ["orbax-checkpoint", "flax", "jax"], "jax", variants=("plain", "prefix"), callbacks=("plain", "prefix"),
        prints="Unable to find the step",  # one that clean-source has removed
    ),
    Framework("timm", "timm_saver", ["timm"], every=1, until=24, seconds=0.8, is_told=True),
    Framework(
        "keras", "keras_fit", ["keras"], "jax", variants=("backup", "models"), every=1, until=24, seconds=2.5,
        callbacks=("models",),
    ),
    Framework(
        "ultralytics", "ultralytics_yolo", ["ultralytics-opencv-headless"], every=1, until=16, seconds=2.5,
        tolerance=0.05,
    ),
    Framework(
        "deepspeed", "deepspeed_zero", ["deepspeed", "torch"], "older-torch", variants=("zero1", "zero3"),
        callbacks=("zero1", "zero3"),
    ),
    Framework(
        "torchtitan", "torchtitan_loop", ["torchtitan", "torch"], variants=("sync", "async"),
        callbacks=("sync", "async"),
    ),
    Framework("megatron-core", "megatron_loop", ["megatron-core", "torch"]),
    Framework("verl", "verl_sft", ["verl", "torch"]),
    # An epoch is sealed until the next one overwrites its recipe state.
    Framework("torchtune", "torchtune_recipe", ["torchtune", "torch"], "older-torch", until=45, seconds=2.5),
    Framework(
        "composer", "composer_fit", ["mosaicml", "torch"], "older-torch",
        prints=r"No batches were trained|warnings\.warn",  # at the end of an epoch
    ),
    Framework(
        "torch.save", "torch_save", ["torch"], variants=("in-place", "renamed", "numbered"), every=10, until=200,
        is_told=True,
    ),
    Framework(
        "pickle", "plain_files", [], "python", variants=("numbered", "renamed", "in-place"), every=10, until=200,
        is_told=True, callbacks=("numbered", "renamed", "in-place"),
    ),
]


def versions(framework):
    if not framework.packages:
        return f"python {sys.version.split()[0]}"
    code = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    command = [python_of(framework.environment), "-c", code, *framework.packages]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class Life:
    """One start of a trainer, alone, beside an agent or through `stepvault run`, until it ends or is killed."""

    def __init__(self, chain, number):
        self.chain, self.number = chain, number
        self.events_path = chain.directory / f"life-{number}.events"
        self.log_path = chain.directory / f"life-{number}.log"
        self.process = None

    def start(self, mode, seconds):
        chain, framework = self.chain, self.chain.framework
        self.tag = f"{chain.token}-{self.number}"
        trainer = [
            str(python_of(framework.environment)), str(TRAINERS / f"{framework.trainer}.py"), str(chain.watch),
            f"--until={framework.until}", f"--every={framework.every}", f"--seconds={seconds}",
            f"--variant={chain.variant}", f"--events={self.events_path}",
        ]  # fmt: skip
        command = [*chain.rig.stepvault(chain), "run", "--", *trainer] if mode == "run" else trainer
        environment = chain.environment() | {TAG: self.tag}
        if mode == "callback":
            environment |= chain.watching()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=chain.node, env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self

    def events(self, event=None):
        text = self.events_path.read_text() if self.events_path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line for line in lines if event is None or line["event"] == event]

    def first(self, event):
        """Waits for an event; returns None if the trainer has ended without it."""

        def found():
            ended = self.process.poll() is not None
            events = self.events(event)
            return events[:1] or ([None] if ended else [])

        return wait_until(lambda: f"the trainer reports {event}; {self.last_lines()}", found, START_SECONDS)[0]

    def pids(self):
        return pids_of(self.tag)

    def watching_agents(self):
        """The agents that the Python package has started."""

        def is_agent(pid):
            try:
                return b"\0agent\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                return False

        return [pid for pid in self.pids() if is_agent(pid)]

    def trainer_pids(self):
        name = str(TRAINERS).encode()

        def is_trainer(pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                return False
            return len(words) > 1 and words[1].startswith(name)

        return [pid for pid in self.pids() if is_trainer(pid)]

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def last_lines(self, count=12):
        return "\n        ".join([f"the end of {self.log_path.name}:", *self.log().splitlines()[-count:]])

    def wait(self, seconds=START_SECONDS):
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the trainer does not end within {seconds} s; {self.last_lines()}") from None

    def end(self):
        if self.process:
            kill(self.pids)
            self.process.wait(timeout=30)


class Chain:
    """Lives of one training job, one after another, on one machine that may be replaced."""

    # The environment in which the remote is reached.
    credentials = {}

    def __init__(self, rig, framework, variant, name, clean, url=None):
        self.rig, self.framework, self.variant, self.name, self.clean = rig, framework, variant, name, clean
        self.token = uuid.uuid4().hex
        self.directory = rig.directory / name
        self.node, self.bucket = self.directory / "node", self.directory / "bucket"
        self.watch = self.node / "out"
        self.bucket.mkdir(parents=True)
        self.url = url or f"file://{self.bucket}"
        self.lives, self.agent = [], None
        self.prepare()

    def prepare(self):
        """An empty machine, but for the configuration."""
        self.watch.mkdir(parents=True)
        clean = "clean-source = true\n" if self.clean else ""
        keep = '[keep.local]\nlast = 1\n' if self.clean else ""
        # The best step is then there for no other reason.
        keep += '[keep.remote]\nlast = 1\n' if self.variant == "best" else ""
        (self.node / "stepvault.toml").write_text(f"""format = 1
[local]
directory = "vault"
[agent]
poll-interval = "1s"
retention-interval = "2s"
drain-deadline = "30s"
notices = []
[remote.shared]
url = "{self.url}"
{keep}{self.framework.config}
[run.job]
watch = "out"
quiet-time = "2s"
{clean}{self.framework.run}
""")

    def environment(self):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("STEPVAULT_")}
        programs = python_of(self.framework.environment).parent
        return kept | self.credentials | {
            "HOME": str(self.rig.directory / "home"), "TMPDIR": str(self.rig.directory / "tmp"),
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "PATH": f"{programs}:{kept['PATH']}",
            # DeepSpeed compiles at its first start.
            "TORCH_EXTENSIONS_DIR": str(CACHE / "extensions"),
        }  # fmt: skip

    def watching(self):
        """The environment of a trainer that watches by the Python package."""
        options = {
            "run": "job", "remote": f"shared={self.url}", "local": str(self.node / "vault"),
            "keep_local_last": 1 if self.clean else 2, "keep_last": 1 if self.variant == "best" else None,
            "drain_deadline": 30, "log": str(self.directory / "agent.log"),
            # Only what is announced is sealed before the end.
            "settings": {"run.job.quiet-time": "1h", "agent.notices": []}, "announced": True,
        }  # fmt: skip
        return {
            "FRAMEWORKS_TEST_WATCH": json.dumps(options), "PYTHONPATH": str(ROOT / "python"),
            "STEPVAULT_PROGRAM": str(self.rig.binary),
        }  # fmt: skip

    def life(self, mode, seconds):
        self.lives.append(Life(self, len(self.lives)))
        return self.lives[-1].start(mode, seconds)

    def start_agent(self):
        with open(self.directory / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                [*self.rig.stepvault(self), "agent"], cwd=self.node, env=self.environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def end_agent(self, number=signal.SIGTERM):
        """Ends the agent; returns its exit code."""
        agent, self.agent = self.agent, None
        if agent is None:
            return None
        agent.send_signal(number)
        try:
            return agent.wait(timeout=60)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
            raise AssertionError("the agent does not end within 60 s after the signal") from None

    def wipe(self):
        shutil.rmtree(self.node)
        self.prepare()

    def command(self, *arguments, codes=(0,)):
        done = subprocess.run(
            [*self.rig.stepvault(self), *arguments, "--json"], capture_output=True, text=True, timeout=180,
            env=self.environment(), cwd=self.node,
        )  # fmt: skip
        with open(self.directory / "commands.log", "a") as log:
            log.write(f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}\n")
        assert done.returncode in codes, (
            f"stepvault {arguments[0]}: exit code {done.returncode}: {done.stdout.strip()} {done.stderr.strip()}"
        )
        return done.returncode, json.loads(done.stdout)

    def durable(self):
        """The durable steps, the newest first: (attempt, step)."""
        if self.url.startswith("file:") and not any(self.bucket.iterdir()):
            return []
        code, document = self.command("list", codes=(0, 10))
        steps = document.get("steps", []) if code == 0 else []
        return sorted(((step["attempt"], step["step"]) for step in steps if step["remotes"]), reverse=True)

    def manifests(self):
        """The saves of all lives: their steps of training, and the digests of their files."""
        return [event for life in self.lives for event in life.events("saved")]

    def unreported(self):
        """The steps whose saves began and whose ends were not reported: they may be whole."""
        steps = set()
        for life in self.lives:
            steps |= {event["step"] for event in life.events("saving")}
            steps -= {event["step"] for event in life.events("saved")}
        return steps

    def change_an_older_step(self, draw):
        """What people do beside a trainer: they describe an older step of several files, and convert one beside it."""
        newest = max((manifest["step"] for manifest in self.manifests()), default=0)
        steps = {os.path.commonpath(manifest["files"]) for manifest in self.manifests()
                 if manifest["files"] and manifest["step"] < newest}  # fmt: skip
        older = [self.watch / step for step in sorted(steps) if re.search("[0-9]", step) and (self.watch / step).is_dir()]
        if not older:
            return
        step = draw.choice(older)
        converted = step.with_name(f"{step.name}_hf")
        try:
            (step / NOTE).write_text(f"# {draw.random()}\n")
            converted.mkdir(exist_ok=True)
            header = b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
            weights = len(header).to_bytes(8, "little") + header + draw.randbytes(8)
            (converted / "model.safetensors").write_bytes(weights)
        except FileNotFoundError:
            # The trainer has just removed the step.
            shutil.rmtree(converted, ignore_errors=True)

    def remove_what_lost_its_step(self):
        """Removes conversions whose steps the trainer has removed: nothing tells what they belong to."""
        for converted in self.watch.rglob("*_hf"):
            if not converted.with_name(converted.name.removesuffix("_hf")).exists():
                shutil.rmtree(converted)

    def trained(self, attempt, step):
        """The step of training that a durable step holds, by the digests that the trainer took; None if unreported."""
        _, document = self.command("show", str(step), "--attempt", str(attempt))
        is_added = lambda path: path.endswith(NOTE) or "_hf/" in path  # noqa: E731
        entries = [entry for entry in document["entries"] if not is_added(entry["path"])]
        held = {entry["sha256"] for entry in entries if entry.get("sha256")}
        # Callbacks may save one step under several names.
        for number in dict.fromkeys(manifest["step"] for manifest in reversed(self.manifests())):
            saves = [manifest for manifest in self.manifests() if manifest["step"] == number]
            files = {digest for save in saves for digest in save["files"].values()}
            beside = {digest for save in saves for digest in save["beside"].values()}
            if held & files and held <= files | beside:
                return number
        return None

    def logs(self):
        yield from (life.log() for life in self.lives)
        path = self.directory / "agent.log"
        yield path.read_text(errors="replace") if path.exists() else ""

    def end(self):
        if self.agent:
            self.agent.kill()
            self.agent.wait()
        for life in self.lives:
            life.end()


class Rig:
    def __init__(self, binary, directory, arguments):
        self.binary, self.directory, self.seed = binary, directory, arguments.seed
        self.modes = arguments.mode or MODES
        for name in ("home", "tmp"):
            (directory / name).mkdir()

    def stepvault(self, chain):
        return [str(self.binary), "--config", str(chain.node / "stepvault.toml")]
