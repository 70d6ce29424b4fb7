#!/usr/bin/env bash
# "Dataloader Checkpoint Testing - Size Issue Fix": 10 GB are free where the checkpoint goes, and TensorFlow says
# "Could not append to the internal temporary file": it writes to TMPDIR first, and the state of the data loader with its
# shuffle buffer is larger than that disk.
# Here: TMPDIR on a disk of 1 MiB, the checkpoints on a large one.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

say "before training: how large the data loader's state is going to be, and with a smaller buffer"
said=$(stepvault estimate --shuffle-buffer 250000 --sample 500KB)
printf '%s\n' "$said"
expect_text "116.4 GiB"
expect_text "174.6 GiB"
said=$(stepvault estimate --shuffle-buffer 10000 --sample 500KB)
expect_text "4.7 GiB"

small_disk scratch size=1m
mkdir -p checkpoints
say "before training: it does not fit into TMPDIR"
TMPDIR="$PWD/scratch" doctor 0 checkpoints --step-size 2MB --save-interval 10m
expect_line warn "temporary" "scratch"
say "the data loader's state does not fit into TMPDIR"
(cat /dev/zero > scratch/tf_checkpoint.tmp) 2>/dev/null || true
cat > test.log <<'LOG'
I0000 saving the iterator to gs://bucket/test-checkpoints/ckpt-1 (shuffle_buffer_size=250000)
tensorflow.python.framework.errors_impl.InternalError: INTERNAL: Could not append to the internal temporary file.
LOG
TMPDIR="$PWD/scratch" explain checkpoints --log test.log
expect_first temporary-directory-full
expect_text "scratch: 0 B of 1.0 MiB free"
expect_text "test.log:2: "
expect_no_cause disk-full

say "explained from another shell, the trainer's TMPDIR is given"
explain checkpoints --log test.log --tmpdir scratch
expect_first temporary-directory-full

say "after the fact the log alone still tells it"
rm scratch/tf_checkpoint.tmp
explain checkpoints --log test.log --tmpdir scratch
expect_cause temporary-directory-full
