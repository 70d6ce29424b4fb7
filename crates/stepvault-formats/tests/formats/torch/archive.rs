//! Zip archives, taken apart and put together byte by byte.

/// A field of a header: its name, offset and length.
pub(super) type Field = (&'static str, usize, usize);

const END: [Field; 7] = [
    ("end: signature", 0, 4),
    ("end: disk", 4, 2),
    ("end: list's disk", 6, 2),
    ("end: records here", 8, 2),
    ("end: records", 10, 2),
    ("end: list's length", 12, 4),
    ("end: list's start", 16, 4),
];
const END_COMMENT: Field = ("end: comment's length", 20, 2);
const LOCATOR: [Field; 4] = [
    ("locator: signature", 0, 4),
    ("locator: disk", 4, 4),
    ("locator: offset", 8, 8),
    ("locator: disks", 16, 4),
];
const LONG_END: [Field; 10] = [
    ("long end: signature", 0, 4),
    ("long end: length", 4, 8),
    ("long end: made by", 12, 2),
    ("long end: needed", 14, 2),
    ("long end: disk", 16, 4),
    ("long end: list's disk", 20, 4),
    ("long end: records here", 24, 8),
    ("long end: records", 32, 8),
    ("long end: list's length", 40, 8),
    ("long end: list's start", 48, 8),
];
const LISTED: [Field; 17] = [
    ("listed: signature", 0, 4),
    ("listed: made by", 4, 2),
    ("listed: needed", 6, 2),
    ("listed: flags", 8, 2),
    ("listed: method", 10, 2),
    ("listed: time", 12, 2),
    ("listed: date", 14, 2),
    ("listed: checksum", 16, 4),
    ("listed: stored length", 20, 4),
    ("listed: length", 24, 4),
    ("listed: name's length", 28, 2),
    ("listed: extra's length", 30, 2),
    ("listed: comment's length", 32, 2),
    ("listed: disk", 34, 2),
    ("listed: internal attributes", 36, 2),
    ("listed: external attributes", 38, 4),
    ("listed: offset", 42, 4),
];
const HEADER: [Field; 11] = [
    ("header: signature", 0, 4),
    ("header: needed", 4, 2),
    ("header: flags", 6, 2),
    ("header: method", 8, 2),
    ("header: time", 10, 2),
    ("header: date", 12, 2),
    ("header: checksum", 14, 4),
    ("header: stored length", 18, 4),
    ("header: length", 22, 4),
    ("header: name's length", 26, 2),
    ("header: extra's length", 28, 2),
];
const DESCRIPTOR: [Field; 4] = [
    ("descriptor: signature", 0, 4),
    ("descriptor: checksum", 4, 4),
    ("descriptor: stored length", 8, 4),
    ("descriptor: length", 12, 4),
];

/// A record of an archive that torch wrote.
pub(super) struct Placed {
    pub(super) name: String,
    pub(super) data_start: usize,
    pub(super) data_length: usize,
}

/// The positions of everything in an archive that torch wrote.
pub(super) struct Layout {
    pub(super) records: Vec<Placed>,
    pub(super) fields: Vec<Field>,
    pub(super) boundaries: Vec<usize>,
}

pub(super) fn number(bytes: &[u8], start: usize, length: usize) -> usize {
    let field = &bytes[start..start + length];
    field.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte))
}

impl Layout {
    /// Parses an archive that has long end records and descriptors, and no comments.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut layout = Self { records: Vec::new(), fields: Vec::new(), boundaries: Vec::new() };
        let end = bytes.len() - 22;
        layout.place(&END, end);
        layout.place(&[END_COMMENT], end);
        layout.place(&LOCATOR, end - 20);
        let long_end = number(bytes, end - 20 + 8, 8);
        layout.place(&LONG_END, long_end);
        let mut listed = number(bytes, end + 16, 4);
        while listed < long_end {
            layout.place(&LISTED, listed);
            let name_length = number(bytes, listed + 28, 2);
            let length = number(bytes, listed + 24, 4);
            layout.fields.push(("listed: name", listed + 46, name_length));
            layout.boundaries.push(listed + 46);
            let header = number(bytes, listed + 42, 4);
            layout.place(&HEADER, header);
            layout.fields.push(("header: name", header + 30, name_length));
            let extra = header + 30 + name_length;
            let extra_length = number(bytes, header + 28, 2);
            layout.fields.push(("header: extra", extra, extra_length));
            let data_start = extra + extra_length;
            layout.boundaries.extend([header + 30, extra, data_start]);
            layout.place(&DESCRIPTOR, data_start + length);
            layout.records.push(Placed {
                name: String::from_utf8(bytes[listed + 46..listed + 46 + name_length].to_vec()).unwrap(),
                data_start,
                data_length: length,
            });
            listed += 46 + name_length + number(bytes, listed + 30, 2);
        }
        assert_eq!(listed, long_end);
        layout
    }

    fn place(&mut self, fields: &[Field], start: usize) {
        self.boundaries.push(start);
        self.fields.extend(fields.iter().map(|(name, offset, length)| (*name, start + offset, *length)));
    }

    pub(super) fn record(&self, name: &str) -> &Placed {
        self.records.iter().find(|record| record.name.split_once('/').unwrap().1 == name).unwrap()
    }
}

/// An archive as another tool would write it: no long end records, no alignment, no descriptors after the data.
#[derive(Default)]
pub(crate) struct Builder {
    pub(super) bytes: Vec<u8>,
    list: Vec<u8>,
    records: u16,
}

impl Builder {
    pub(crate) fn add(self, name: &str, data: &[u8]) -> Self {
        self.add_as(name, data, 0, 0)
    }

    pub(crate) fn add_as(mut self, name: &str, data: &[u8], method: u16, flags: u16) -> Self {
        let offset = u32::try_from(self.bytes.len()).unwrap();
        let length = u32::try_from(data.len()).unwrap();
        let mut common = Vec::new();
        common.extend(20_u16.to_le_bytes());
        common.extend(flags.to_le_bytes());
        common.extend(method.to_le_bytes());
        common.extend([0; 4]);
        common.extend(rawzip::crc32(data).to_le_bytes());
        common.extend(length.to_le_bytes());
        common.extend(length.to_le_bytes());
        common.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
        common.extend([0; 2]);
        self.bytes.extend(b"PK\x03\x04");
        self.bytes.extend(&common);
        self.bytes.extend(name.as_bytes());
        self.bytes.extend(data);
        self.list.extend(b"PK\x01\x02\x14\x00");
        self.list.extend(&common);
        self.list.extend([0; 10]);
        self.list.extend(offset.to_le_bytes());
        self.list.extend(name.as_bytes());
        self.records += 1;
        self
    }

    /// Lists the last record a second time.
    pub(super) fn list_again(mut self, from: usize) -> Self {
        let again = self.list[from..].to_vec();
        self.list.extend(again);
        self.records += 1;
        self
    }

    pub(super) fn list_length(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn finish(mut self, comment: &[u8]) -> Vec<u8> {
        let start = u32::try_from(self.bytes.len()).unwrap();
        self.bytes.extend(&self.list);
        self.bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
        self.bytes.extend(self.records.to_le_bytes());
        self.bytes.extend(self.records.to_le_bytes());
        self.bytes.extend(u32::try_from(self.list.len()).unwrap().to_le_bytes());
        self.bytes.extend(start.to_le_bytes());
        self.bytes.extend(u16::try_from(comment.len()).unwrap().to_le_bytes());
        self.bytes.extend(comment);
        self.bytes
    }
}

/// Returns a pickle of one storage.
pub(super) fn pickle_of_storage(class: &str, key: &str, elements: u32) -> Vec<u8> {
    format!("(Vstorage\nctorch\n{class}\nV{key}\nVcpu\nI{elements}\ntQ.").into_bytes()
}

/// Returns a small file of `torch.save`, as another tool would pack it.
pub(crate) fn small_archive(pickle: &[u8]) -> Builder {
    Builder::default().add("model/data.pkl", pickle).add("model/version", b"3\n")
}
