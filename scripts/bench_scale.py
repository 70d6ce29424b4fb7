"""How commands grow with the number of steps, runs, files and nodes: `scripts/bench --only scale`.

Many steps and runs are made from one that was pushed into a directory, by writing its objects under other numbers; their
records have the digests that they need. The server loads these objects from the directory.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

TITLES = ["state", "remote", "command", "wall s", "CPU s", "peak MiB", "requests"]
# Codes of commands that did their work: doctor warns of some things on any machine.
DOCTOR_CODES = (0, 1, 3)
AGENT_START_SECONDS, AGENT_IDLE_SECONDS = 15, 60


def canonical(record):
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Template:
    """The objects of one step that was pushed into a directory, to be written again as other steps and runs."""

    def __init__(self, remote):
        self.remote = remote
        hidden = remote / "bench" / ".stepvault"
        self.marker = (hidden / "vault.json").read_bytes()
        read = {kind: [json.loads(file.read_bytes()) for file in (hidden / kind).rglob("*.json")]
                for kind in ["attempts", "parts", "commits"]}
        self.claims, (self.part,), (self.commit,) = read["attempts"], read["parts"], read["commits"]
        data = remote / "bench" / "000000000001.a1" / "step_1"
        # The parts of steps of several nodes, as JSON: they take longest to write.
        self.parts = {}
        self.data = [(str(file.relative_to(data)), file.read_bytes()) for file in data.rglob("*") if file.is_file()]

    def write(self, run, step, nodes=None):
        """Writes step `step` of `run`. With `nodes`, its commit and claim name these nodes, whose parts are not there: such a
        step can be listed, and not restored."""
        label, name, node = f"{step:012}.a1", f"step_{step}", self.part["node"]
        hidden, data = self.remote / run / ".stepvault", self.remote / run / label / name
        made = {"id": {"attempt": 1, "step": step}, "name": name, "run": run}
        part = canonical({**self.part, **made})
        digest = {"manifest_bytes": len(part), "manifest_sha256": hashlib.sha256(part).hexdigest()}
        first = {**self.commit["parts"][0], **digest}
        if nodes and len(nodes) not in self.parts:
            self.parts[len(nodes)] = canonical([{**first, "node": name} for name in nodes])
        parts = self.parts[len(nodes)] if nodes else canonical([first])
        claimed = {**made, "nodes": nodes} if nodes else made
        for directory in [hidden / "attempts", hidden / "commits", hidden / "parts" / label, data]:
            directory.mkdir(parents=True, exist_ok=True)
        (hidden / "vault.json").write_bytes(self.marker)
        for claim in self.claims:
            (hidden / "attempts" / f"{label}.json").write_bytes(canonical({**claim, **claimed}))
        (hidden / "parts" / label / f"{node}.json").write_bytes(part)
        (hidden / "commits" / f"{label}.json").write_bytes(canonical({**self.commit, **made, "parts": "@"}).replace(b'"@"', parts))
        for path, body in self.data:
            (data / path).parent.mkdir(parents=True, exist_ok=True)
            (data / path).write_bytes(body)


class Scale:
    """Measures commands on states. `measure` runs a command; `server` starts a server with the objects of a directory
    in its bucket."""

    def __init__(self, program, scratch, measure, server, environment):
        self.program, self.scratch, self.measure = program, scratch, measure
        self.server, self.environment = server, environment

    def line(self, words, vault, url, run="bench"):
        return [str(word) for word in
                [self.program, *words, "--run", run, "--local", vault, "--remote", f"main={url}", "-q"]]

    def checkpoint(self, name, files=1):
        directory = self.scratch / "source" / name
        directory.mkdir(parents=True)
        for index in range(files):
            # About 100 bytes of path, as in the documented bounds.
            file = directory / ("model.bin" if files == 1 else f"{index // 1000:0>40}/shard-{index:0>50}.bin")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(hashlib.sha256(str(index).encode()).digest() * 4)
        return directory

    def fresh(self):
        """Removes what the last state left, and returns the directory of the remote."""
        for name in ["remote", "source", "vault"]:
            shutil.rmtree(self.scratch / name, ignore_errors=True)
        (self.scratch / "remote").mkdir()
        return self.scratch / "remote"

    def rows(self, state, commands, directory):
        """Yields the rows of commands on a server, then of those on the directory itself."""
        with self.server(directory) as server:
            url = f"s3://bench?endpoint={server.endpoint}&region=us-east-1"
            yield from self.rows_on(state, "S3", url, commands, lambda: server.counts()[0])
        yield from self.rows_on(state, "directory", f"file://{directory}", commands, lambda: "")

    def rows_on(self, state, kind, url, commands, requests):
        vault = self.scratch / "vault"
        shutil.rmtree(vault, ignore_errors=True)
        requests()
        for title, words, *codes in commands:
            shutil.rmtree(self.scratch / "into", ignore_errors=True)
            if words is None:
                yield from self.agent_rows(state, kind, vault, url, requests)
                continue
            wall, cpu, peak = self.measure(self.line(words, vault, url), *codes)
            yield row(state, kind, title, wall, cpu, peak, requests())

    def agent_rows(self, state, kind, vault, url, requests):
        """Yields the rows of an agent that begins, and then has nothing to do."""
        watched = self.scratch / "watched"
        watched.mkdir(exist_ok=True)
        config = self.scratch / "stepvault.toml"
        config.write_text(f'[run.bench]\nwatch = "{watched}"\n[keep.remote]\nlast = 1000000\n')
        agent = subprocess.Popen([*self.line(["agent"], vault, url), "--config", str(config)], env=self.environment,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cpu = 0
        for title, seconds in [(f"agent, its first {AGENT_START_SECONDS} s", AGENT_START_SECONDS),
                               (f"agent, {AGENT_IDLE_SECONDS} s without work", AGENT_IDLE_SECONDS)]:
            time.sleep(seconds)
            status, fields = Path(f"/proc/{agent.pid}/status").read_text(), Path(f"/proc/{agent.pid}/stat").read_text()
            peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
            used = sum(map(int, fields.rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")
            yield row(state, kind, title, seconds, used - cpu, peak, requests())
            cpu = used
        agent.send_signal(signal.SIGTERM)
        agent.wait()
        requests()

    def steps(self, count):
        directory = self.fresh()
        self.measure(self.line(["push", self.checkpoint("step_1")], self.scratch / "vault", f"file://{directory}"))
        template = Template(directory)
        for step in range(2, count + 1):
            template.write("bench", step)
        more, into = self.checkpoint(f"step_{count + 1}"), self.scratch / "into"
        commands = [
            ("push of one more step", ["push", more]), ("list, the first time", ["list"]), ("list", ["list"]), ("list --json", ["list", "--json"]),
            ("show of one step", ["show", count]), ("status", ["status"], (0, 12)), ("runs", ["runs"]),
            ("restore --plan", ["restore", "--plan", "--into", into]), ("restore", ["restore", "--into", into]),
            ("wait for one step", ["wait", count, "--timeout", "5s"]), ("verify of one step", ["verify", count]),
            ("verify", ["verify"]), ("pin", ["pin", count // 2]), ("doctor", ["doctor"], DOCTOR_CODES),
            ("agent", None),
            ("prune --dry-run", ["prune", "--dry-run", "--tier", "main", "--keep-last", 10]),
            ("prune of one step", ["prune", "--tier", "main", "--keep-last", count, "--max-delete", 1]),
            ("gc --dry-run", ["gc", "--dry-run"]), ("gc", ["gc"]),
            ("prune to 10 steps", ["prune", "--tier", "main", "--keep-last", 10]),
            ("gc of what is left", ["gc", "--grace", "0s"]),
        ]
        yield from self.rows(f"{count:,} steps", commands, directory)

    def runs(self, count):
        directory = self.fresh()
        self.measure(self.line(["push", self.checkpoint("step_1")], self.scratch / "vault", f"file://{directory}"))
        template = Template(directory)
        for number in range(1, count):
            template.write(f"run-{number}", 1)
        commands = [("push of one more step", ["push", self.checkpoint("step_2")]), ("runs", ["runs"]), ("list", ["list"]),
                    ("doctor", ["doctor"], DOCTOR_CODES), ("gc", ["gc"])]
        yield from self.rows(f"{count:,} runs", commands, directory)

    def files(self, count):
        directory, state = self.fresh(), f"{count:,} files"
        source, into = self.checkpoint("step_1", count), self.scratch / "into"
        step_1 = ["--step", 1, "--into", into]
        reading = [
            ("list", ["list"]), ("show", ["show", 1]), ("verify", ["verify", "--tier", "main"]),
            ("restore --plan", ["restore", "--plan", *step_1]), ("restore", ["restore", *step_1]),
            ("gc", ["gc"]), ("prune of one step", ["prune", "--tier", "main", "--keep-last", 1]),
        ]
        for words in [["inspect", source], ["estimate", source]]:
            wall, cpu, peak = self.measure([str(word) for word in [self.program, *words, "-q"]], (0, 1, 2, 3, 10))
            yield row(state, "", words[0], wall, cpu, peak, "")
        empty = self.scratch / "empty"
        empty.mkdir(exist_ok=True)
        push = [("push", ["push", source])]
        with self.server(empty) as server:
            url = f"s3://bench?endpoint={server.endpoint}&region=us-east-1"
            yield from self.rows_on(state, "S3", url, push, lambda: server.counts()[0])
        yield from self.rows_on(state, "directory", f"file://{directory}", push, lambda: "")
        # A second step, that the first one can be pruned: it has one file.
        second = self.line(["push", self.checkpoint("step_2")], self.scratch / "vault", f"file://{directory}")
        self.measure(second)
        yield from self.rows(state, reading, directory)

    def nodes(self, count):
        """Yields the row of so many nodes that push their parts of one step at once."""
        directory, state = self.fresh(), f"{count} nodes"
        processes = []
        environment = {**self.environment, "STEPVAULT_LAUNCH": "bench"}
        with self.server(directory) as server:
            url = f"s3://bench?endpoint={server.endpoint}&region=us-east-1"
            server.counts()
            begun = time.monotonic()
            for index in range(count):
                source = self.checkpoint(f"node-{index}/step_1")
                (source / "model.bin").rename(source / f"model-{index}.bin")
                line = self.line(["push", source], self.scratch / "vaults" / f"node-{index}", url)
                line += ["--nodes", str(count), "--node", f"node-{index}"]
                processes.append(subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL,
                                                  stderr=subprocess.PIPE, text=True))
            for process in processes:
                _, errors = process.communicate()
                if process.returncode != 0:
                    raise SystemExit(f"a node's push failed with {process.returncode}: {errors[-2000:]}")
            wall = time.monotonic() - begun
            yield row(state, "S3", "push by every node at once", wall, 0, 0, server.counts()[0])
        shutil.rmtree(self.scratch / "vaults")

    def table(self, steps):
        """Yields the lines of the table as they are known."""
        yield f"| {' | '.join(TITLES)} |"
        yield "|---" * len(TITLES) + "|"
        largest = max(steps)
        for count in steps:
            yield from self.steps(count)
        for count in [max(1, largest // 1000), max(2, largest // 100)]:
            yield from self.runs(count)
        for count in [max(1, largest * 149 // 1000), min(largest * 149 // 100, 149_000)]:
            yield from self.files(count)
        for count in [4, 16, 64]:
            yield from self.nodes(count)


def row(state, kind, title, wall, cpu, peak, requests):
    return f"| {state} | {kind} | {title} | {wall:.2f} | {cpu:.2f} | {peak / (1 << 20):.0f} | {requests} |"
