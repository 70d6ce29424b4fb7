#!/usr/bin/env bash
# "Checkpoint Handling on ISC Training Cluster": the log says where a checkpoint would go, and the directory is not
# writable, or not there, inside the trainer's container. The report adds a page of checks to the trainer.
# Here: the directory of another user, and one that was never mounted. The trainer itself stays as it is.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

mkdir -p mnt/checkpoints
cat > rank_0.log <<LOG
2025-06-29 09:30:17,120 - checkpoint_utils - INFO - tr $PWD/mnt/checkpoints/checkpoint_20250629-093015_2000.pth
PermissionError: [Errno 13] Permission denied: '$PWD/mnt/checkpoints/checkpoint_20250629-093015_2000.pth'
LOG

say "before training: the variables that the cluster promises, as the configuration asks for them"
cat > required.toml <<'TOML'
[doctor]
required-environment = ["CHECKPOINT_ARTIFACT_PATH", "LOSSY_ARTIFACT_PATH", "OUTPUT_PATH"]
TOML
unset OUTPUT_PATH
CHECKPOINT_ARTIFACT_PATH="$PWD/mnt/checkpoints" LOSSY_ARTIFACT_PATH="$PWD/mnt/lossy" \
  doctor 14 -v mnt/checkpoints --config required.toml
expect_line pass CHECKPOINT_ARTIFACT_PATH
expect_line fail LOSSY_ARTIFACT_PATH
expect_line fail OUTPUT_PATH

say "the log alone"
explain --log rank_0.log
expect_cause permission-denied
expect_text "rank_0.log:2: PermissionError"

say "the variable names a directory that was never mounted"
explain mnt/lossy --log rank_0.log
expect_cause directory-missing
expect_text "mnt/lossy does not exist"
cat > rank_1.log <<'LOG'
Traceback (most recent call last):
  File "/usr/lib/python3.12/os.py", line 714, in __getitem__
KeyError: 'CHECKPOINT_ARTIFACT_PATH'
LOG
explain --log rank_1.log
expect_cause directory-missing

say "as the trainer's own user"
[ "$(id -u)" = 0 ] && command -v setpriv > /dev/null || skip "this process may not become another user"
chmod 755 . mnt mnt/checkpoints
cp "$(command -v stepvault)" ./stepvault
code=0
said=$(HOME=/nonexistent TMPDIR=/tmp setpriv --reuid 65534 --regid 65534 --clear-groups ./stepvault doctor --no-remotes mnt/checkpoints) || code=$?
printf '%s\n' "$said"
[ "$code" = 14 ] || fail "doctor as another user ended with $code"
expect_line fail "checkpoints $PWD/mnt/checkpoints"
said=$(HOME=/nonexistent TMPDIR=/tmp setpriv --reuid 65534 --regid 65534 --clear-groups ./stepvault explain mnt/checkpoints)
printf '%s\n' "$said"
expect_cause permission-denied
expect_text "user 65534 has no permission to write to $PWD/mnt/checkpoints; its owner is user 0"
