//! Disks without free bytes or inodes, and the files that the checks leave on a disk with space.

use stepvault_testkit::tree::entries_below;

use crate::doctor::{Findings as _, place, run_after};

#[test]
fn a_good_disk_passes_and_nothing_is_left_on_it() {
    let place = place();
    place.save_in_run("step_5", 3000, 0);
    let before = entries_below(place.root());
    let ran = place.doctor(&["--quiet"]).expect_code(0);
    for (check, subject) in [
        ("directory", "checkpoints"),
        ("directory", "vault"),
        ("directory", "TMPDIR"),
        ("directory", "temporary directory /tmp"),
        ("hard links", "run to "),
        ("free bytes", "checkpoints, vault"),
    ] {
        assert!(!ran.finding(check, subject).measured.is_empty());
    }
    ran.finding("directory", "checkpoints").expect(
        "pass",
        "written, synced, renamed, linked and deleted",
        "",
    );
    for check in ["write rate", "read rate"] {
        let rate = ran.finding(check, "checkpoints, vault");
        assert!(rate.measured.contains("B/s ("), "{rate:?}");
    }
    assert_eq!(entries_below(place.root()), before);
}

#[test]
fn a_disk_without_a_byte_fails() {
    let place = place();
    let full =
        "mount -t tmpfs -o size=4m tmpfs run || exit 99\nhead -c 9000000 /dev/zero >run/filler 2>/dev/null";
    let Some(ran) = place.doctor_after(full, &[]) else {
        return;
    };
    let ran = ran.expect_code(14);
    ran.finding("directory", "checkpoints").expect(
        "fail",
        "no space is left on its filesystem",
        "free some space",
    );
    ran.finding("free bytes", "checkpoints").expect(
        "fail",
        "0 B of 4.0 MiB free",
        "delete files you do not need",
    );
}

#[test]
fn a_disk_without_an_inode_fails_by_that_name() {
    let place = place();
    let full = "mount -t tmpfs -o size=4m,nr_inodes=20 tmpfs run || exit 99\n\
                for n in $(seq 30); do touch run/$n 2>/dev/null; done";
    let Some(ran) = place.doctor_after(full, &[]) else {
        return;
    };
    let ran = ran.expect_code(14);
    ran.finding("directory", "checkpoints").expect(
        "fail",
        "its filesystem has no inode left",
        "with more inodes",
    );
    ran.finding("free inodes", "checkpoints").expect("fail", "0 of 20 free", "df -i");
}

#[test]
fn a_step_of_many_files_does_not_fit_a_disk_of_few_inodes() {
    let place = place();
    // Its inodes are few, its bytes are many.
    let small = "truncate -s 16M disk.img && mkfs.ext4 -q -F -N 64 disk.img && mount -o loop disk.img run || exit 99\n\
                 mkdir run/step_5 && for n in $(seq 40); do echo '{}' >run/step_5/$n.json; done\n\
                 touch -d '1 day ago' run/step_5/* run/step_5";
    let Some(ran) = place.doctor_after(small, &[]) else {
        return;
    };
    let ran = ran.expect_code(14);
    ran.finding("free inodes", "checkpoints").expect(
        "fail",
        "the next step takes 41 inodes (by the one step in ",
        "mkfs.ext4 -i",
    );
    ran.finding("free bytes", "checkpoints").expect("pass", "room for", "");
    ran.finding("hard links", "run to ").expect("pass", "not available: different filesystems or mounts", "");
    ran.finding("reflinks", "run to ").expect(
        "warn",
        "not available (different filesystems or mounts), and with profile 'generic' finished files may be \
         overwritten in place: 120 B of each step are copied",
        "put checkpoints and vault on one XFS or btrfs filesystem",
    );
    // What never changes could be linked.
    let quiet = "printf '[run.mine]\\nwatch = \"run\"\\ncomplete = \"quiet\"\\n' >stepvault.toml\n";
    let Some(ran) = place.doctor_after(&format!("{quiet}{small}"), &[]) else {
        return;
    };
    ran.finding("hard links", "run to ").expect(
        "warn",
        "not available (different filesystems or mounts): 120 B of each step are copied",
        "put the vault on the same mount as the checkpoints",
    );
}

#[test]
fn a_step_that_may_be_overwritten_is_counted_twice() {
    let place = place();
    place.save_in_run("step_5", 3_000_000, 0);
    let ran = place.doctor(&[]).expect_code(0);
    if ran.finding("reflinks", "run to ").measured == "work" {
        eprintln!("not run: this filesystem shares blocks, so that nothing is copied");
        return;
    }
    ran.finding("free bytes", "checkpoints, vault").expect(
        "pass",
        "the next step takes 5.7 MiB (by the one step in ",
        "",
    );
    // A framework's own profile says that its files stay as they are.
    place.save_in_run("checkpoint-5", 3_000_000, 0);
    std::fs::write(place.path("run/checkpoint-5/trainer_state.json"), "{\"global_step\": 5}").unwrap();
    std::fs::write(place.path("run/checkpoint-5/training_args.bin"), "PK").unwrap();
    std::fs::remove_dir_all(place.path("run/step_5")).unwrap();
    let ran = place.doctor(&[]).expect_code(0);
    ran.finding("free bytes", "checkpoints, vault").expect(
        "pass",
        "the next step takes 2.9 MiB (by the one step in ",
        "",
    );
}

#[test]
fn a_step_that_is_larger_than_what_is_free_fails() {
    let place = place();
    let small = "mount -t tmpfs -o size=64m tmpfs run || exit 99";
    let Some(ran) = place.doctor_after(small, &["--step-size", "100 MiB"]) else {
        return;
    };
    let ran = ran.expect_code(14);
    ran.finding("free bytes", "checkpoints").expect(
        "fail",
        "the next step takes 100.0 MiB (by --step-size): it does not fit",
        "[keep.local] last",
    );
}

/// Enters a control group in which the disk of `run` writes 20 MB in a second and reads 30, of whichever version is
/// mounted, and leaves it when the shell ends.
const THROTTLE: &str = r#"truncate -s 200M disk.img && mkfs.ext4 -q -F disk.img && mount -o loop disk.img run || exit 99
device=$(mountpoint -d run) || exit 99
if [ -e /sys/fs/cgroup/blkio/blkio.throttle.io_serviced ]; then
    top=/sys/fs/cgroup/blkio; group=$top/stepvault-doctor-test-$$
    mkdir $group || exit 99
    trap 'echo $$ >$top/cgroup.procs; rmdir $group' EXIT
    echo "$device 20000000" >$group/blkio.throttle.write_bps_device || exit 99
    echo "$device 30000000" >$group/blkio.throttle.read_bps_device || exit 99
else
    top=/sys/fs/cgroup; group=$top/stepvault-doctor-test-$$
    own=$top$(sed -n 's/^0:://p' /proc/self/cgroup)
    mkdir $group || exit 99
    trap 'echo $$ >$own/cgroup.procs; rmdir $group' EXIT
    echo "$device wbps=20000000 rbps=30000000" >$group/io.max || exit 99
fi
echo $$ >$group/cgroup.procs || exit 99"#;

#[test]
fn a_slow_disk_is_said_in_seconds_a_step() {
    let place = place();
    let arguments = ["--local", "run/vault", "--step-size", "2 GB", "--save-interval", "1m"];
    let mut doctor = place.doctor_command(&[&["run", "--json"], &arguments[..]].concat());
    let Some(ran) = run_after(THROTTLE, &mut doctor) else {
        return;
    };
    let rate = ran.finding("write rate", "checkpoints, vault");
    rate.expect("warn", "for writing a step of 1.9 GiB", "below 100 MiB/s");
    ran.finding("read rate", "checkpoints, vault").expect("warn", "for reading a step of 1.9 GiB", "NVMe");
    // At 20 MB/s and less, 2 GB take longer than a minute.
    ran.finding("save and seal", "run").expect("warn", "a step is saved every 1m", "save less often");
}
