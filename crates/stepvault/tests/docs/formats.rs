//! docs/reference/formats.md: what the structural checks verify and their blind spots, from each check's documentation.

use std::fmt::Write as _;

use crate::generated::check_generated;
use crate::place::read;

const SOURCE: &str = "crates/stepvault-formats/src";

/// The formats, with the module that checks each.
const FORMATS: [(&str, &str); 22] = [
    ("safetensors", "structure/safetensors/mod.rs"),
    ("torch.save, zip", "structure/torch_zip.rs"),
    ("torch.save, legacy", "structure/torch_legacy.rs"),
    ("Pickle", "structure/pickle_file.rs"),
    ("Pickles inside other files", "pickle/mod.rs"),
    ("PyTorch distributed checkpoint (DCP)", "structure/dcp.rs"),
    ("DeepSpeed", "structure/deepspeed.rs"),
    ("Megatron-LM", "structure/megatron.rs"),
    ("Orbax", "structure/orbax/mod.rs"),
    ("OCDBT", "structure/ocdbt/mod.rs"),
    ("Zarr", "structure/zarr/mod.rs"),
    ("MessagePack (Flax)", "structure/msgpack.rs"),
    ("npy", "structure/npy/mod.rs"),
    ("npz", "structure/npz.rs"),
    ("GGUF", "structure/gguf/mod.rs"),
    ("HDF5 (Keras)", "structure/hdf5.rs"),
    ("tar", "structure/tar.rs"),
    ("TensorFlow bundle", "structure/tf_bundle/mod.rs"),
    ("Sharded Hugging Face weights", "structure/hf_index.rs"),
    ("JSON", "structure/json.rs"),
    ("YAML", "structure/yaml.rs"),
    ("Sets of ranks", "structure/rank_set.rs"),
];

#[test]
fn the_formats_page_says_what_the_checks_say() {
    let mut page = String::new();
    for (title, module) in FORMATS {
        let documentation = module_documentation(&read(format!("{SOURCE}/{module}")));
        assert!(documentation.contains("\n# Blind spots\n"), "{module} names no blind spots");
        writeln!(page, "## {title}\n\n{}\n", without_links(&documentation).trim()).unwrap();
    }
    check_generated("docs/reference/formats.md", &page);
}

#[test]
fn every_check_is_on_the_formats_page() {
    let modules = read(format!("{SOURCE}/structure/mod.rs"));
    let modules = modules.lines().filter_map(|line| line.strip_prefix("pub mod "));
    // These are not formats: what checks share, and what other pages say.
    let others = ["holes", "kind", "torch", "zip"];
    for module in modules.map(|line| line.trim_end_matches(';')) {
        let is_listed = FORMATS
            .iter()
            .any(|(_, path)| path.strip_prefix("structure/").is_some_and(|path| path.starts_with(module)));
        assert!(is_listed || others.contains(&module), "{module} is not on the page");
    }
}

/// The lines of a module's own documentation.
fn module_documentation(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let lines: Vec<&str> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.join("\n")
}

/// Headings one level deeper, and links within the code as plain words: the last part of the path.
fn without_links(documentation: &str) -> String {
    let mut text = String::new();
    for line in documentation.lines() {
        let mut rest = line;
        if let Some(title) = line.strip_prefix("# ") {
            writeln!(text, "### {title}").unwrap();
            continue;
        }
        while let Some((before, after)) = rest.split_once("[`") {
            let Some((name, after)) = after.split_once("`]") else {
                break;
            };
            let last = name.rsplit("::").next().unwrap_or(name);
            write!(text, "{before}`{last}`").unwrap();
            rest = after;
        }
        writeln!(text, "{rest}").unwrap();
    }
    text.replace("### Blind spots\n\n", "### Blind spots\n")
        .replace("### Blind spots\n", "### Blind spots\n\n")
}
