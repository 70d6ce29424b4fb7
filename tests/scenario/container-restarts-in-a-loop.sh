#!/usr/bin/env bash
# "Training Crash Diagnosis: Step 57 Pattern": days of suspects (a 120 s time-out, memory, the disk), until it turns out
# that the container never trained: its start command clones a repository into a directory that is there already, fails,
# and is started again every 17 s.
# Here: the same start command with the real git, through `stepvault run`. The history of starts names the loop, the log
# names what it fails over.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

command -v git > /dev/null || skip "there is no git"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
git init --quiet --initial-branch main upstream
git -C upstream -c user.name=a -c user.email=a@example.com commit --quiet --allow-empty --message first
mkdir -p outputs archive
cat > start.sh <<'START'
git clone --quiet upstream AReaL || exit
echo "step 57: Loading weights from disk done"
exit 1
START
cat > stepvault.toml <<TOML
[local]
directory = "vault"
[remote.archive]
url = "file://$PWD/archive"
[run.grpo]
watch = "outputs"
TOML

say "the container's supervisor starts it again and again"
for _ in 1 2 3 4 5 6; do
  stepvault run --quiet --node pod-0 -- sh start.sh >> docker.log 2>&1 || true
done

explain --log docker.log
expect_first path-exists
expect_text "fatal: destination path 'AReaL' already exists and is not an empty directory."
expect_cause restart-loop
expect_text "was started 6 times within 10 min on pod-0"
expect_text "exit 128, exit 128"

say "it was no time-out; where it is one, it is named as that"
cat > trainer.log <<'LOG'
20261121-10:16:00.000 grpo INFO: Epoch 1/1 Step 58/250 Train step 58/250 done.
Traceback (most recent call last):
  File "/workspace/AReaL/areal/engine/sglang_remote.py", line 310, in _update_weights_from_disk
    save_timestamp = float(name_resolve.wait(update_name, timeout=120))
TimeoutError: Timeout waiting for key 'root/areal/trial/update_weights_from_disk/58' (NfsNameRecordRepository)
LOG
said=$(stepvault explain --log trainer.log --run other --local none)
expect_cause time-out
expect_text "trainer.log:5: TimeoutError: Timeout waiting for key"
expect_no_cause restart-loop
