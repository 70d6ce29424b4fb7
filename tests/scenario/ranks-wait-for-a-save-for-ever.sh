#!/usr/bin/env bash
# "Checkpoint Hanging Fix Guide": ranks lose each other around a save, and training hangs, or dies of a barrier's time-out.
# The report adds barriers of 120 s, and try and except around every save.
# Here: rank 0 is killed in the middle of a distributed save, which a real framework left so, and the others wait. The
# time-out is named, with the step that was not finished and the one to go on from; and the barrier that stepvault has
# always returns.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

fixture dcp-killed-before-metadata work_dir/checkpoints
cat > rank_1.log <<'LOG'
Saving checkpoint: ./work_dir/checkpoints/step_30
Checkpoint barrier timeout on rank 1: [Rank 1]: Ranks 0 failed to pass monitoredBarrier in 120000 ms
LOG
cat > rank_0.log <<'LOG'
Saving checkpoint: ./work_dir/checkpoints/step_30
LOG

explain work_dir/checkpoints --log rank_0.log --log rank_1.log
expect_cause time-out
expect_text "rank_1.log:2: Checkpoint barrier timeout on rank 1"
expect_cause partial-step
expect_text "step_30"
expect_text "to resume from step 20, $PWD/work_dir/checkpoints/step_20"

say "a save that fails is said by the trainer, and by explain with its reason"
cat > rank_0.log <<'LOG'
Failed to save checkpoint: [Errno 28] No space left on device: './work_dir/checkpoints/step_30/__0_0.distcp'
LOG
explain work_dir/checkpoints --log rank_0.log --log rank_1.log
expect_cause disk-full
expect_cause time-out
case "$said" in *"disk-full, "*"time-out, "*) ;; *) fail "what followed from it comes first" ;; esac

say "a barrier that always returns"
cat > stepvault.toml <<TOML
[local]
directory = "vault"
[remote.archive]
url = "file://$PWD/archive"
[run.protein]
watch = "work_dir/checkpoints"
quiet-time = "1s"
TOML
code=0
stepvault agent --once --quiet || code=$?
[ "$code" = 3 ] || fail "the step that was never finished counts as stored: $code"
stepvault wait 20 --for durable --timeout 60s
code=0
stepvault wait 30 --for durable --timeout 1s || code=$?
[ "$code" = 10 ] || fail "waiting for a step that never came ended with $code"
