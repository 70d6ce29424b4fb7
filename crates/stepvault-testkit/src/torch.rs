//! Files as `torch.save` writes them, with a state that says which step it is.

/// Returns an uncompressed archive around a pickle.
pub fn archive(pickle: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    let records: [(&str, &[u8]); 3] =
        [("archive/data.pkl", pickle), ("archive/byteorder", b"little"), ("archive/version", b"3\n")];
    for (name, body) in records {
        let offset = length(archive.len());
        // From the required version to the length of the extra field: equal in both headers.
        let mut facts = vec![0; 10];
        facts.extend(crc32(body).to_le_bytes());
        facts.extend(length(body.len()).to_le_bytes().repeat(2));
        facts.extend([u8::try_from(name.len()).unwrap(), 0, 0, 0]);
        archive.extend(b"PK\x03\x04");
        archive.extend(&facts);
        archive.extend(name.as_bytes());
        archive.extend(body);
        directory.extend(b"PK\x01\x02\0\0");
        directory.extend(&facts);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let start = length(archive.len());
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0\x03\0\x03\0");
    archive.extend(length(directory.len()).to_le_bytes());
    archive.extend(start.to_le_bytes());
    archive.extend([0, 0]);
    archive
}

/// Returns a dictionary with these numbers, and a text as its weights. A key with a dot is a key of a dictionary in a
/// list: `optimizer_history.num_updates`.
pub fn state(numbers: &[(&str, i64)], weights: &str) -> Vec<u8> {
    let entry = |(key, number): &(&str, i64)| match key.split_once('.') {
        Some((list, key)) => format!("V{list}\n(l(dV{key}\nI{number}\nsas"),
        None => format!("V{key}\nI{number}\ns"),
    };
    let entries: String = numbers.iter().map(entry).collect();
    archive(format!("(dVweights\nV{weights}\ns{entries}.").as_bytes())
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap()
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
