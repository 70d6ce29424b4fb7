//! A pickle that would run a command, in every format that contains pickles: it is read, and nothing is executed.

use stepvault_formats::pickle::{Keep, Pickle, read_whole};
use stepvault_formats::soundness::Soundness;
use stepvault_formats::structure::{dcp, torch};

use super::archive::small_archive;
use super::support::verdict;

/// `os.system("touch …")`, as `__reduce__` writes it, without the `STOP`.
fn trap(flag: &str) -> String {
    format!("cposix\nsystem\n(Vtouch {flag}\ntR")
}

fn assert_told(pickle: &Pickle, flag: &str) {
    let call = pickle
        .objects()
        .find_map(|object| match object {
            stepvault_formats::pickle::Object::Call(call) => {
                (pickle.global(call.callable) == Some(("posix", "system"))).then_some(call)
            }
            _ => None,
        })
        .expect("the call is there as data");
    let arguments = pickle.elements(call.arguments).unwrap();
    assert_eq!(pickle.text(arguments[0]), Some(format!("touch {flag}").as_str()));
}

#[test]
fn a_command_in_a_pickle_is_data() {
    let directory = tempfile::tempdir().unwrap();
    let flag = directory.path().join("ran");
    let flag = flag.to_str().unwrap();
    let pickle = format!("{}.", trap(flag)).into_bytes();

    assert_eq!(verdict(torch::check, &pickle), Soundness::Sound);
    assert_told(&read_whole(&pickle, 0..pickle.len() as u64, Keep::Values).unwrap(), flag);

    let archive = small_archive(&pickle).finish(b"");
    assert_eq!(verdict(torch::check, &archive), Soundness::Sound);
    assert_told(&torch::read_object(&archive).unwrap(), flag);

    let legacy = format!("L119547037146038801333356L\n.I1001\n.(d.{}.(l.", trap(flag)).into_bytes();
    assert_eq!(verdict(torch::check, &legacy), Soundness::Sound);
    assert_told(&torch::read_object(&legacy).unwrap(), flag);

    let metadata = super::dcp::metadata_of(&[("a", 0, 1)], &format!("V__reduce__\n{}s", trap(flag)));
    assert_eq!(dcp::read_metadata(&metadata).unwrap().len(), 1);
    assert_told(&read_whole(&metadata, 0..metadata.len() as u64, Keep::Values).unwrap(), flag);

    assert!(!std::path::Path::new(flag).exists());
}
