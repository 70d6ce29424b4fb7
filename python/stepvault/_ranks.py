"""Which of a node's ranks this process is, as its launcher tells."""

from __future__ import annotations

import os
import re
from typing import Optional, Tuple

#: Variables of a launcher for a rank's number on its node, and for how many there are: torchrun (also behind
#: `accelerate launch` and `deepspeed`), Open MPI, MVAPICH, and Slurm's srun.
_LOCAL_RANKS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("LOCAL_RANK", "LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def local_rank() -> Optional[Tuple[int, int]]:
    """Returns this rank's number on its node, and how many there are; None if the launcher does not tell."""
    for number, count in _LOCAL_RANKS:
        # Slurm writes the tasks of each node: 8(x4). Where nodes have different numbers it is not known here.
        tasks = re.fullmatch(r"(\d+)(\(x\d+\))?", os.environ.get(count, ""))
        if tasks is not None and os.environ.get(number, "").isdigit():
            return int(os.environ[number]), int(tasks[1])
    return None
