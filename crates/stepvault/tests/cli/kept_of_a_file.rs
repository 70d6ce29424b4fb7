//! What is stored of a file besides its bytes, which rewrites are detected, and how many files a step may have.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use stepvault_testkit::random::bytes;
use stepvault_testkit::tree::{files_below, set_mode};

use crate::support::{Place, file_below};

const MIB: u64 = 1 << 20;

/// 64 MiB of which the second MiB and some bytes near the end are written.
fn write_sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(64 * MIB).unwrap();
    file.write_all_at(&bytes(1, 1 << 20), MIB).unwrap();
    file.write_all_at(b"near the end", 63 * MIB + 5).unwrap();
    file.sync_all().unwrap();
}

fn room_bytes(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

#[test]
fn a_sparse_file_comes_back_sparse_and_a_file_of_zeros_as_it_was() {
    let place = Place::on_disk();
    let source = place.checkpoint("step_100", "weights");
    write_sparse(&source.join("sparse.bin"));
    File::create(source.join("nothing-but-a-hole")).unwrap().set_len(20 * MIB + 7).unwrap();
    let zeros = vec![0; 12 << 20];
    std::fs::write(source.join("zeros.bin"), &zeros).unwrap();
    File::open(source.join("zeros.bin")).unwrap().sync_all().unwrap();
    let before = std::fs::read(source.join("sparse.bin")).unwrap();
    if room_bytes(&source.join("sparse.bin")) > 4 * MIB {
        eprintln!("not tried: this file system keeps no holes");
        return;
    }
    place.succeed_here(&["push", "checkpoints/step_100"]);
    // In the vault too, where it was copied.
    let kept = file_below(&place.path(".stepvault/runs"), "sparse.bin");
    assert!(room_bytes(&kept) <= 2 * MIB, "{}", room_bytes(&kept));

    for from in ["local", "remote"] {
        if from == "remote" {
            place.remove(".stepvault");
        }
        place.succeed_here(&["restore", "--into", from]);
        let back = place.path(from).join("step_100");
        assert!(std::fs::read(back.join("sparse.bin")).unwrap() == before, "{from}");
        assert!(room_bytes(&back.join("sparse.bin")) <= 2 * MIB, "{from}");
        let hole = back.join("nothing-but-a-hole");
        assert_eq!(hole.metadata().unwrap().len(), 20 * MIB + 7);
        assert!(std::fs::read(&hole).unwrap().iter().all(|byte| *byte == 0));
        assert!(room_bytes(&hole) <= 64 << 10, "{from}: {}", room_bytes(&hole));
        // Zeros that were written are written: who reserved the room has it.
        assert!(std::fs::read(back.join("zeros.bin")).unwrap() == zeros);
        assert!(room_bytes(&back.join("zeros.bin")) >= 12 << 20, "{from}");
    }
}

/// They are written as they come, and found wrong only then.
#[test]
fn bytes_of_a_damaged_copy_do_not_stay_where_a_hole_belongs() {
    let place = Place::on_disk();
    let source = place.checkpoint("step_100", "weights");
    write_sparse(&source.join("sparse.bin"));
    let before = std::fs::read(source.join("sparse.bin")).unwrap();
    let second = format!("second=file://{}", place.path("second").display());
    place.succeed_here(&["push", "checkpoints/step_100", "--remote", &second]);
    place.remove(".stepvault");
    for remote in ["remote", "second"] {
        let data = file_below(&place.path(remote), "sparse.bin");
        // Other parts of each, so that each part is right on one of them.
        let offset = if remote == "remote" { 40 * MIB } else { 48 * MIB };
        File::options()
            .write(true)
            .open(data)
            .unwrap()
            .write_all_at(&vec![9; 6 << 20], offset + 100)
            .unwrap();
    }
    place.succeed_here(&["restore", "--into", "back", "--remote", &second]);
    let back = place.path("back/step_100/sparse.bin");
    assert!(std::fs::read(&back).unwrap() == before);
    assert!(room_bytes(&back) <= 2 * MIB, "{}", room_bytes(&back));
}

#[test]
fn names_of_one_file_come_back_as_files_of_their_own_with_plain_permissions() {
    let place = Place::new();
    let source = place.checkpoint("step_100", "weights");
    std::fs::hard_link(source.join("model.bin"), source.join("again.bin")).unwrap();
    let special = source.join("state.json");
    set_mode(&special, 0o6755);
    let sticky = source.join("sub");
    std::fs::create_dir(&sticky).unwrap();
    set_mode(&sticky, 0o1777);
    place.succeed_here(&["push", "checkpoints/step_100"]);
    place.remove(".stepvault");
    place.succeed_here(&["restore", "--into", "back"]);
    let back = place.path("back/step_100");
    let facts = |name: &str| back.join(name).metadata().unwrap();
    assert_eq!(
        std::fs::read(back.join("again.bin")).unwrap(),
        std::fs::read(back.join("model.bin")).unwrap()
    );
    assert_ne!(facts("again.bin").ino(), facts("model.bin").ino());
    assert_eq!((facts("again.bin").nlink(), facts("model.bin").nlink()), (1, 1));
    assert_eq!(facts("state.json").mode() & 0o7777, 0o755);
    assert_eq!(facts("sub").mode() & 0o7777, 0o777);
    // The user who restores owns what is restored.
    let own = place.path("tmp").metadata().unwrap();
    assert_eq!((facts("model.bin").uid(), facts("model.bin").gid()), (own.uid(), own.gid()));
}

/// A trainer that has a file mapped and writes to it when it is told to.
struct MappedFile(Child);

impl MappedFile {
    fn open(path: &Path) -> Self {
        let script = "import mmap, sys\n\
                      file = open(sys.argv[1], 'r+b')\n\
                      mapped = mmap.mmap(file.fileno(), 0)\n\
                      mapped[0:4] = mapped[0:4]\n\
                      print('mapped', flush=True)\n\
                      sys.stdin.readline()\n\
                      mapped[0:4] = b'XXXX'\n\
                      print('written', flush=True)\n\
                      sys.stdin.readline()\n";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let told = Self::line(&mut child);
        assert_eq!(told, "mapped\n");
        Self(child)
    }

    fn line(child: &mut Child) -> String {
        let mut line = String::new();
        let output = child.stdout.as_mut().unwrap();
        BufReader::with_capacity(1, output).read_line(&mut line).unwrap();
        line
    }

    fn write(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(Self::line(&mut self.0), "written\n");
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A step of a framework whose finished files are taken over by hard link.
fn hugging_face(place: &Place) -> std::path::PathBuf {
    let step = "checkpoints/checkpoint-100";
    place.write(&format!("{step}/trainer_state.json"), "{\"global_step\": 100}");
    for name in ["optimizer.pt", "pytorch_model.bin"] {
        place.write(&format!("{step}/{name}"), "weights ".repeat(10_000));
    }
    place.path(step)
}

/// The kernel gives a file on tmpfs no new time for what is written through a mapping.
#[test]
fn what_a_mapping_changes_on_tmpfs_is_found_by_the_digests_of_what_was_sent() {
    let place = Place::within(Path::new("/dev/shm"));
    let source = hugging_face(&place);
    let file = source.join("optimizer.pt");
    let mut mapped = MappedFile::open(&file);
    let before = file.metadata().unwrap();
    let right = std::fs::read(&file).unwrap();
    place.succeed_here(&["push", "checkpoints/checkpoint-100"]);
    let linked = file_below(&place.path(".stepvault/runs"), "optimizer.pt");
    assert_eq!(linked.metadata().unwrap().ino(), before.ino(), "not a hard link");
    mapped.write();
    let after = file.metadata().unwrap();
    assert_eq!(
        (after.mtime(), after.mtime_nsec(), after.len()),
        (before.mtime(), before.mtime_nsec(), before.len()),
        "the kernel notices it now: then so does stepvault, and docs/what-is-kept.md may say so"
    );
    assert!(std::fs::read(&linked).unwrap().starts_with(b"XXXX"));

    // By sizes and times nothing has happened.
    place.succeed_here(&["verify", "--local", ".stepvault"]);
    place
        .run_here(&["verify", "--deep", "--local", ".stepvault"])
        .expect_code(1)
        .expect_stdout(&["optimizer.pt has different bytes than were saved"]);
    // Another remote must not get what the first one has not.
    let second = format!("second=file://{}", place.path("second").display());
    let pushed = place.run_here(&["push", "checkpoints/checkpoint-100", "--remote", &second]);
    assert_ne!(pushed.code, 0, "{pushed:#?}");
    assert!(!place.path("second/demo/a/.stepvault/commits").exists());
    // And a restore takes the part from where it is right.
    place.succeed_here(&["restore", "--into", "back"]);
    let back = std::fs::read(place.path("back/checkpoint-100/optimizer.pt")).unwrap();
    assert!(back == right);
}

/// Other file systems stamp the first write to a page after it was synced, and sealing syncs.
#[test]
fn what_a_mapping_changes_on_a_disk_is_found_by_the_time() {
    let place = Place::on_disk();
    let source = hugging_face(&place);
    let mut mapped = MappedFile::open(&source.join("optimizer.pt"));
    place.succeed_here(&["push", "checkpoints/checkpoint-100"]);
    let before = source.join("optimizer.pt").metadata().unwrap();
    mapped.write();
    let after = source.join("optimizer.pt").metadata().unwrap();
    if (after.mtime(), after.mtime_nsec()) == (before.mtime(), before.mtime_nsec()) {
        eprintln!("not tried: the directory for temporary files is on tmpfs");
        return;
    }
    place
        .run_here(&["verify", "--local", ".stepvault"])
        .expect_code(1)
        .expect_stdout(&["it was written again after it was sealed"]);
}

/// Makes `count` names of `length` bytes for one empty file and more like it.
fn fill_with_names(directory: &Path, count: usize, length: usize) {
    // Two components: one may have 255 bytes.
    let deep = directory.join("d".repeat(length - 256));
    std::fs::create_dir_all(&deep).unwrap();
    let rest = length - deep.file_name().unwrap().len() - 1;
    let mut first = deep.join("x");
    for number in 0..count {
        let path = deep.join(format!("{number:0>rest$}"));
        if number.is_multiple_of(30_000) {
            File::create(&path).unwrap();
            first = path;
        } else {
            std::fs::hard_link(&first, path).unwrap();
        }
    }
}

/// A step that no manifest can list was once sent in full, and refused then, at each try.
#[test]
fn more_files_than_a_step_can_list_are_refused_before_anything_is_sent() {
    let place = Place::within(Path::new("/dev/shm"));
    let source = place.path("checkpoints/step_100");
    // Each takes 810 bytes of the manifest's 64 MiB.
    fill_with_names(&source, 90_000, 511);
    place
        .run_here(&["push", "checkpoints/step_100"])
        .expect_code(2)
        .expect_error("the list of its 90000 files takes 7")
        .expect_stderr(&["the limit is 67108864", "pack them into one file"]);
    // Records alone, whatever was sent before it was refused.
    let mut sent = files_below(&place.path("remote"));
    sent.retain(|path| !path.to_string_lossy().contains("/.stepvault/"));
    assert!(sent.is_empty(), "{sent:?}");
    assert!(files_below(&place.path(".stepvault/staging")).is_empty());
}
