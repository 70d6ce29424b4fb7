//! A parser for the subset of Markdown that the documents use.

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// The word behind the fence.
    pub(crate) language: String,
    /// Line of the fence, from 1.
    pub(crate) line: usize,
    /// What stands in it.
    pub(crate) lines: Vec<String>,
}

/// The fenced blocks of a document.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        match open.take() {
            None => {
                if let Some(language) = line.trim_start().strip_prefix("```") {
                    let block = Block { language: language.to_owned(), line: number + 1, lines: Vec::new() };
                    open = Some((block, indent));
                }
            }
            Some((block, _)) if line.trim() == "```" => blocks.push(block),
            Some((mut block, cut)) => {
                block.lines.push(line.get(cut.min(indent)..).unwrap_or_default().to_owned());
                open = Some((block, cut));
            }
        }
    }
    assert!(open.is_none(), "a fenced block is not closed: {open:?}");
    blocks
}

/// The text outside fenced blocks, with the number of each line from 1.
pub(crate) fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut prose = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            prose.push((number + 1, line));
        }
    }
    prose
}

/// The code spans of a line.
pub(crate) fn code_spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

#[test]
fn blocks_and_spans_are_found() {
    let text = "a `b c` d `e`\n```sh\nx\n  y\n```\n  ```console\n  $ z\n  ```\n";
    let found = blocks(text);
    assert_eq!((found[0].language.as_str(), found[0].line, found[0].lines.len()), ("sh", 2, 2));
    assert_eq!(found[1].lines, ["$ z"]);
    assert_eq!(prose(text), [(1, "a `b c` d `e`")]);
    assert_eq!(code_spans("a `b c` d `e`"), ["b c", "e"]);
}
