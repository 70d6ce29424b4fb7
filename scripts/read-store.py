#!/usr/bin/env python3
"""Restores the newest valid step of a run from a file:// remote. Implemented from docs/format.md alone.

usage: read-store.py URL RUN TARGET [STEP]
"""
import hashlib, json, os, pathlib, re, shutil, sys, urllib.parse

def record(data):
    """Parses a record strictly: format 1, 2 or 3, in its canonical form (except for the numbers of metrics)."""
    value = json.loads(data)
    spelled = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    if value["format"] not in (1, 2, 3) or (spelled != data and not value.get("metrics")):
        raise ValueError("not a record of format 1, 2 or 3 in canonical form")
    return value

def checked(path):
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"unsafe path {path!r}")
    return path

def read_part(records, label, commit, part):
    data = (records / "parts" / label / f"{part['node']}.json").read_bytes()
    if len(data) != part["manifest_bytes"] or hashlib.sha256(data).hexdigest() != part["manifest_sha256"]:
        raise ValueError("a part manifest differs from the one that the commit names")
    manifest = record(data)
    if any(manifest[key] != commit[key] for key in ("run", "id", "name", "shape")):
        raise ValueError("a part manifest contradicts its commit")
    return manifest

def hasher_of(algorithm):
    if algorithm == "sha256":
        return hashlib.sha256
    if algorithm != "blake3":
        raise ValueError(f"unknown digests {algorithm!r}")
    try:
        from blake3 import blake3
    except ImportError:
        sys.exit("this run has BLAKE3 digests: install the Python package blake3")
    return blake3

# The bits, the reversed polynomial and a table of each checksum that a store may have computed over a whole object.
CHECKSUMS = {"crc32c": (32, 0x82F63B78, []), "crc64nvme": (64, 0x9A6C9329AC4BC9B5, [])}

def checksum_of(name, path):
    """Computes a checksum without dependencies: some megabytes in a second."""
    bits, polynomial, table = CHECKSUMS[name]
    for value in range(len(table), 256):
        for _ in range(8):
            value = value >> 1 ^ polynomial * (value & 1)
        table.append(value)
    found = ones = (1 << bits) - 1
    with open(path, "rb") as data:
        while block := data.read(1 << 20):
            for byte in block:
                found = found >> 8 ^ table[(found ^ byte) & 0xFF]
    return f"{found ^ ones:0{bits // 4}x}"

def copy_trusted(source, target, entry):
    """Copies an imported file without digests. What proves it is the checksum that its store had."""
    [name] = [name for name in CHECKSUMS if name in entry]
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if target.stat().st_size != entry["size_bytes"] or checksum_of(name, target) != entry[name]:
        raise ValueError(f"{entry['path']}: wrong size or {name}")
    settle(target, entry)

def copy_file(source, target, entry, algorithm):
    """Copies a file part by part; writes a part only after its digest is verified."""
    hasher, parts = hasher_of(algorithm), entry[f"parts_{algorithm}"]
    size, cut, composite = entry["size_bytes"], 8 << 20, hasher()
    while size > cut * 10_000:
        cut *= 2
    if cut != entry["part_size_bytes"] or len(parts) != max(1, -(-size // cut)):
        raise ValueError(f"{entry['path']}: wrong parts")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(source, "rb") as data, open(target, "wb") as out:
        for index, expected in enumerate(parts):
            part = data.read(min(cut, size - index * cut))
            if hasher(part).hexdigest() != expected:
                raise ValueError(f"{entry['path']}: part {index} differs from what was saved")
            composite.update(bytes.fromhex(expected))
            out.write(part)
        if data.read(1) or composite.hexdigest() != entry[algorithm]:
            raise ValueError(f"{entry['path']}: wrong size or digest")
    settle(target, entry)

def settle(path, entry):
    os.chmod(path, entry["mode"])
    os.utime(path, ns=(0, entry["mtime"]["seconds"] * 10**9 + entry["mtime"]["nanoseconds"]))

def restore(remote, root, label, staging):
    commit = record((root / ".stepvault/commits" / f"{label}.json").read_bytes())
    step, revision = commit["id"], commit["id"].get("revision", 1)
    if label != f"{step['step']:012}.a{step['attempt']}" + (f"r{revision}" if revision > 1 else ""):
        raise ValueError("the commit belongs to another step")
    manifests = [read_part(root / ".stepvault", label, commit, part) for part in commit["parts"]]
    every = lambda kind: [entry for manifest in manifests for entry in manifest[kind]]
    place = staging if commit["shape"] == "file" else staging / checked(commit["name"])
    for manifest in manifests:
        for entry in manifest["files"]:
            path = checked(entry["path"])
            data = root / label / commit["name"] / path
            if "imported" in manifest:  # another program has written the objects
                prefix = manifest["imported"]["prefix"]
                data = remote / (checked(prefix) if prefix else "") / path
                if not any(name in entry for name in ("sha256", "blake3")):
                    copy_trusted(data, place / path, entry)
                    continue
            copy_file(data, place / path, entry, manifest.get("digest", "sha256"))
    folders = {entry["path"] or "": entry for entry in every("directories")}
    for path in filter(None, folders):
        (place / checked(path)).mkdir(parents=True, exist_ok=True)
    for link in every("symlinks"):
        os.symlink(link["target"], place / checked(link["path"]))
    for path in sorted(folders, reverse=True):  # the deepest first: a directory's time changes with what is in it
        settle(place / path, folders[path])
    # A path that several parts name takes the position that it has in the last of them.
    named = [checked(path) for manifest in manifests for path in manifest.get("members", [])]
    members = list(dict.fromkeys(reversed(named)))[::-1]
    links = [link for manifest in manifests for link in manifest.get("origin", {}).get("links", [])]
    return (place, members, links) if members else (staging, [commit["name"]], links)

def put(place, paths, links, target):
    """Renames each path to where the trainer looks for it. The last one makes the step visible to the trainer."""
    for path in paths:
        if os.path.lexists(target / path):
            sys.exit(f"{target / path} exists")
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        os.rename(place / path, target / path)
        print(target / path)
    for link in links:
        if not os.path.lexists(target / checked(link["path"])):
            os.symlink(link["target"], target / link["path"])

def main(url, run, target, step=None):
    remote = pathlib.Path(urllib.parse.unquote(urllib.parse.urlparse(url).path))
    root = remote / run
    named = re.compile(r"(\d{12})\.a([1-9]\d*)(?:r([2-9]|[1-9]\d+))?\.json")
    def labels(kind):
        names = os.listdir(root / ".stepvault" / kind) if (root / ".stepvault" / kind).is_dir() else []
        key = lambda found: (int(found[2]), int(found[1]), int(found[3] or 1))
        return {key(found): found[0][:-5] for found in map(named.fullmatch, names) if found}
    gone, target = labels("tombstones"), pathlib.Path(target)
    for key, label in sorted(labels("commits").items(), reverse=True):
        if key in gone or step not in (None, str(key[1])):
            continue
        staging = target / ".read-store"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            return put(*restore(remote, root, label, staging), target)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"skipped {label}: {error}", file=sys.stderr)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    sys.exit("no valid step")

if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
