"""What the trainers of scripts/test-frameworks share: arguments, and one JSON line for each event.

    NAME.py DIRECTORY --until STEP --every STEPS --seconds SECONDS_OF_A_STEP [--variant VARIANT] [--events FILE]

Each trainer trains a tiny model on the CPU in a deterministic way, saves into DIRECTORY and resumes from what it finds
there, both by its framework's own code. It prints a line for each event, or appends it to FILE:

    restored    the path that the Python package restored; null if there was nothing
    found       at the start: the SHA-256 of each file in DIRECTORY, and the step that `stepvault run` restored
    resume      STEP: the training goes on after this step; 0 at a first start
    loss        STEP VALUE
    evaluation  STEP VALUE: the loss on other data, before the save of that step
    saving      STEP: a save begins
    saved       STEP: it has ended; the SHA-256 of each file of it, by its path in DIRECTORY, and of those beside it
    end         the training is done; the SHA-256 of the weights
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

ARGUMENTS = None
# The agent of stepvault's Python package, where the test lets the trainer start it.
AGENT = None


def arguments():
    global ARGUMENTS, AGENT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--until", type=int, default=30)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--variant", default="")
    parser.add_argument("--events", type=Path)
    ARGUMENTS = parser.parse_args()
    ARGUMENTS.directory = ARGUMENTS.directory.resolve()
    ARGUMENTS.directory.mkdir(parents=True, exist_ok=True)
    options = os.environ.get("FRAMEWORKS_TEST_WATCH")
    if options:
        import stepvault

        AGENT = stepvault.watch(ARGUMENTS.directory, **json.loads(options))
        path = AGENT.restore()
        report("restored", path=path and str(path))
    report("found", files=digests([ARGUMENTS.directory]), restored=os.environ.get("STEPVAULT_RESTORED_STEP"))
    return ARGUMENTS


def report(event, **fields):
    # One call, so that the lines of several processes do not mix.
    line = (json.dumps({"event": event, "time": time.time(), **fields}) + "\n").encode()
    if ARGUMENTS.events is None:
        os.write(1, line)
        return
    descriptor = os.open(ARGUMENTS.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, line)
    os.close(descriptor)


def digests(paths):
    """The SHA-256 of each file of these paths, by its path in the directory; links are followed."""
    files = {}
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file():
                name = str(file.relative_to(ARGUMENTS.directory))
                files[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return files


def resume(step):
    report("resume", step=int(step))


def loss(step, value):
    report("loss", step=int(step), value=float(value))


def evaluation(step, value):
    report("evaluation", step=int(step), value=float(value))


def saving(step):
    report("saving", step=int(step))


def saved(step, *paths, beside=()):
    """`beside` are files from which the trainer does not resume, but which may be kept with the step."""
    files = digests([ARGUMENTS.directory / path for path in paths])
    assert files, f"step {step} has no files"
    found = [ARGUMENTS.directory / path for path in beside if (ARGUMENTS.directory / path).exists()]
    report("saved", step=int(step), files=files, beside=digests(found))


def end(arrays):
    """Reports the end, with the digest of the weights: a list of NumPy arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    report("end", weights=digest.hexdigest())


def pause():
    time.sleep(ARGUMENTS.seconds)


def start_torch_group(rank=0, world=1, path=None):
    """Starts the process group of torch.distributed, over a file instead of a port."""
    import torch.distributed as dist

    store = dist.FileStore(path or f"{tempfile.mkdtemp(prefix='frameworks.')}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def torch_weights(model):
    return [value.detach().cpu().contiguous().float().numpy() for value in model.state_dict().values()]


def small_torch_model(width=64, hidden=512, dropout=0.1, shard=lambda model: None):
    """A model, its optimizer, and the function that takes one step on the batch of that number and returns the loss."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(hidden, width)
    )
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(step):
        batch = torch.randn(8, width, generator=torch.Generator().manual_seed(step))
        value = (model(batch) - batch.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.item()

    return model, optimizer, train_step


def evaluation_loss(model, width=64):
    """The loss of such a model on a batch that is never trained on."""
    import torch

    batch = torch.randn(8, width, generator=torch.Generator().manual_seed(1 << 32))
    was_training = model.training
    model.eval()
    with torch.no_grad():
        value = (model(batch) - batch.roll(1, dims=1)).square().mean()
    model.train(was_training)
    return value
