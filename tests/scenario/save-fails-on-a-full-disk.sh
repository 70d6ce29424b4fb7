#!/usr/bin/env bash
# "Troubleshooting Checkpoint Save Error": prime-rl dies in torch.save with a traceback that does not say why. The report
# lists four suspects (bytes, rights, inodes, leftovers), a page of df, find and rm, and ends with `keep`.
# Here: the same run on a small disk. One command names the disk, the log's line, what is left over, and the step to go on
# from; then the agent keeps the disk free by itself.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

small_disk run size=6m
fixture prime-rl-checkpoints run/outputs/grpo_30b
mkdir -p run/outputs/grpo_30b/logs/trainer
log=run/outputs/grpo_30b/logs/trainer/rank_0.log
cat > "$log" <<'LOG'
[2026-11-21 10:02:11] INFO Step 29 | Loss 0.3412
[2026-11-21 10:02:14] INFO Saving weight checkpoint at step 30
Traceback (most recent call last):
  File "/workspace/prime-rl/src/prime_rl/trainer/weights.py", line 238, in save_state_dict
    torch.save(state_dict, save_dir / weights_name)
  File "/workspace/prime-rl/.venv/lib/python3.12/site-packages/torch/serialization.py", line 966, in save
    with _open_zipfile_writer(f) as opened_zipfile:
LOG

say "before training: the disk does not hold the next step"
doctor 14 run/outputs/grpo_30b --step-size 30MB --save-interval 10m
expect_line fail "free bytes" "of 6.0 MiB free"

say "the disk is full, and the log does not say so"
(cat /dev/zero > run/outputs/grpo_30b/step_30.pt.tmp) 2>/dev/null || true
explain run/outputs/grpo_30b --log "$log"
expect_first disk-full
expect_text "of 6.0 MiB free"
expect_text "rank_0.log:7: with _open_zipfile_writer(f) as opened_zipfile:"
expect_cause partial-step
expect_text "to resume from step 20, $PWD/run/outputs/grpo_30b/checkpoints/step_20"

say "it is the inodes, and bytes are free"
rm run/outputs/grpo_30b/step_30.pt.tmp
small_disk inodes size=8m,nr_inodes=200
cp -a run/outputs inodes/
mkdir inodes/outputs/__pycache__
for file in $(seq 300); do (: > "inodes/outputs/__pycache__/$file") 2>/dev/null || break; done
explain inodes/outputs/grpo_30b --log inodes/outputs/grpo_30b/logs/trainer/rank_0.log
expect_first inodes-full
expect_text "0 inodes free"
expect_no_cause disk-full

say "with space again, the half-written step is moved away as said, and nothing is wrong any more"
explain run/outputs/grpo_30b
expect_first partial-step
obey
explain run/outputs/grpo_30b
expect_no_cause partial-step
expect_text "to resume from step 20"

say "the agent removes what is durable from the trainer's directory, so that the disk does not fill up"
cat > stepvault.toml <<TOML
[local]
directory = "run/vault"
[agent]
poll-interval = "200ms"
[remote.archive]
url = "file://$PWD/archive"
[run."grpo-30b"]
watch = "run/outputs/grpo_30b"
quiet-time = "1s"
clean-source = true
[keep.local]
last = 1
TOML
stepvault agent --once --quiet
stepvault list --run grpo-30b | grep -q 'archive' || fail "no step is on the archive"
