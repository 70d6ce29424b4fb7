//! Mounts that are read-only, in memory, layered, or dead.

use crate::doctor::{Findings as _, place};

#[test]
fn a_read_only_mount_fails() {
    let place = place();
    let read_only = "mount --bind run run && mount -o remount,ro,bind run || exit 99";
    let Some(ran) = place.doctor_after(read_only, &[]) else {
        return;
    };
    let ran = ran.expect_code(14);
    ran.finding("directory", "checkpoints").expect(
        "fail",
        "it is a read-only file system for this process",
        "ReadWritePaths",
    );
    ran.finding("filesystem", "checkpoints").expect("fail", "mounted read-only", "remount,rw");
}

#[test]
fn memory_and_layers_are_told_from_disks() {
    let place = place();
    let layers = "mount -t tmpfs -o mode=755 tmpfs vault && mkdir vault/lower vault/upper vault/work || exit 99\n\
                  mount -t overlay -o lowerdir=vault/lower,upperdir=vault/upper,workdir=vault/work overlay run || exit 99";
    let Some(ran) = place.doctor_after(layers, &[]) else {
        return;
    };
    ran.finding("filesystem", "vault ").expect("warn", "in memory", "use a disk");
    ran.finding("filesystem", "checkpoints").expect("warn", "the container's own layer", "mount a volume");
}

#[test]
fn a_dead_mount_is_a_finding_and_no_standstill() {
    let place = place();
    // Nobody ever answers what the kernel asks here.
    let dead = "exec 3<>/dev/fuse || exit 99\n\
                mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 dead run || exit 99";
    let Some(ran) = place.doctor_after(dead, &[]) else {
        return;
    };
    let ran = ran.expect_code(14);
    ran.finding("directory", "checkpoints").expect(
        "fail",
        "its filesystem did not answer within 10 s (fuse, dead on ",
        "umount -l",
    );
    ran.finding("directory", "vault").expect("pass", "written", "");
}

#[test]
fn a_remote_on_the_vaults_own_filesystem_is_no_second_copy() {
    let place = place();
    std::fs::create_dir(place.path("archive")).unwrap();
    let remote = format!("main=file://{}", place.path("archive").display());
    let ran = place.doctor(&["--remote", &remote]);
    ran.finding("own filesystem", "main").expect(
        "warn",
        "on the vault's filesystem",
        "use a directory below a mount point",
    );
}

#[test]
fn a_remote_on_another_filesystem_passes() {
    let place = place();
    let remote = format!("main=file://{}", place.path("archive").display());
    let Some(ran) = place
        .doctor_after("mkdir archive && mount -t tmpfs tmpfs archive || exit 99", &["--remote", &remote])
    else {
        return;
    };
    ran.finding("own filesystem", "main").expect("pass", "a different filesystem", "");
}
