//! Formats tables for people.

use std::os::fd::AsFd;

use console::measure_text_width;
use itertools::Itertools as _;
use rustix::termios::tcgetwinsize;

/// Columns between two columns of the table.
const GAP: usize = 2;
/// A last column that would get less than this stands below its row.
const MIN_LAST_WIDTH: usize = 30;
/// Indentation of a last column below its row.
const BELOW_INDENT: usize = 4;

/// Renders a table of rows of cells below headings, without trailing spaces; the columns in `right` are right-aligned.
pub(crate) fn text<Row: IntoIterator<Item: Into<String>>>(
    headings: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Row>,
) -> String {
    fitted(headings, right, rows, UNLIMITED)
}

/// Renders a table so that its last column, whose cells may have several lines, ends at `width`, if the other columns
/// leave room for it.
pub(crate) fn fitted<Row: IntoIterator<Item: Into<String>>>(
    headings: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Row>,
    width: usize,
) -> String {
    let headings: Vec<String> = headings.iter().map(|heading| heading.to_uppercase()).collect();
    let rows = rows.into_iter().map(|cells| cells.into_iter().map(Into::into).collect());
    let rows: Vec<Vec<String>> = std::iter::once(headings).chain(rows).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width_of = |column: usize| {
        let lines = rows.iter().filter_map(|row| row.get(column)).flat_map(|cell| cell.lines());
        lines.map(measure_text_width).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width_of).collect();
    let last = columns.saturating_sub(1);
    let begin = widths.iter().take(last).map(|width| width + GAP).sum::<usize>();
    let is_below = begin + widths.last().copied().unwrap_or_default() > width
        && width.saturating_sub(begin) < MIN_LAST_WIDTH;
    let indent = if is_below { BELOW_INDENT } else { begin };
    let mut lines = Vec::new();
    for row in &rows {
        let mut cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let space = " ".repeat(width.saturating_sub(measure_text_width(cell)));
            if right.contains(&column) { space + cell } else { cell.to_owned() + &space }
        });
        let mut line: String = cells.by_ref().take(last).map(|cell| cell + "  ").collect();
        let text = cells.next().unwrap_or_default();
        if is_below || text.trim().is_empty() {
            lines.push(line.trim_end().to_owned());
            line = " ".repeat(indent);
        }
        for part in text.trim_end().lines() {
            for wrapped in wrap(part, width.saturating_sub(indent), hanging(part)).lines() {
                lines.push(line + wrapped);
                line = " ".repeat(indent);
            }
        }
    }
    lines.join("\n")
}

/// Returns the indentation under the text of a remedy.
fn hanging(line: &str) -> usize {
    if line.starts_with("-> ") { 3 } else { 0 }
}

/// The width that wraps nothing.
pub(crate) const UNLIMITED: usize = usize::MAX;
/// A line that continues under no text of its own is indented by this much more than it was.
const CONTINUATION: usize = 2;
/// A longer beginning of a line is not a label such as `warning: `.
const MAX_LABEL: usize = 16;

/// Returns the number of columns of a terminal; [`UNLIMITED`] for anything else, and for a terminal of unknown width.
pub(crate) fn width_of(terminal: impl AsFd) -> usize {
    match tcgetwinsize(terminal) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => UNLIMITED,
    }
}

/// Wraps each line under its own text: after `hint: `, `- ` or `1. `.
pub(crate) fn fit(text: &str, width: usize) -> String {
    let lines = text.split('\n');
    lines.map(|line| wrap(line, width, text_column(line))).join("\n")
}

/// Breaks a line at spaces so that it is at most `width` columns wide, and indents what follows by `indent` columns. A
/// word is never broken, so that a path can be copied.
pub(crate) fn wrap(line: &str, width: usize, indent: usize) -> String {
    if measure_text_width(line) <= width {
        return line.to_owned();
    }
    // In a narrow terminal the text takes precedence over its alignment.
    let indent = if indent > width / 2 { CONTINUATION } else { indent };
    let (mut wrapped, mut column) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        if column > indent && column + measure_text_width(word.trim_end()) > width {
            wrapped.truncate(wrapped.trim_end().len());
            wrapped.push('\n');
            wrapped.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        }
        wrapped.push_str(word);
        column += measure_text_width(word);
    }
    wrapped
}

/// Returns the column at which the text of a line begins, after its indentation and its label or bullet.
fn text_column(line: &str) -> usize {
    let text = line.trim_start_matches(' ');
    let first = text.split_inclusive(' ').next().unwrap_or_default();
    let label = text.find(": ").map(|end| &text[..end + 2]);
    let is_bullet = matches!(first, "- " | "-> ") || first.ends_with(". ");
    let marked = match label {
        _ if is_bullet => measure_text_width(first),
        Some(label) if measure_text_width(label) <= MAX_LABEL => measure_text_width(label),
        _ => CONTINUATION,
    };
    line.len() - text.len() + marked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(width: usize) -> String {
        let row = [
            "FAIL",
            "free bytes",
            "vault on /v",
            "0 B of 1.0 GiB free, and the next step takes 2.0 GiB\n-> delete something, or use /mnt/a-larger-disk/than/this",
        ];
        fitted(&["", "check", "subject", "measured"], &[], [row], width)
    }

    #[test]
    fn columns_line_up_and_lines_end_clean() {
        let rows = [["100", "local"], ["5", ""], ["7", "保存"]];
        assert_eq!(text(&["step", "where"], &[0], rows), "STEP  WHERE\n 100  local\n   5\n   7  保存");
    }

    #[test]
    fn the_last_column_wraps_under_itself() {
        assert_eq!(
            findings(70),
            "      CHECK       SUBJECT      MEASURED\n\
             FAIL  free bytes  vault on /v  0 B of 1.0 GiB free, and the next step\n\
             \x20                              takes 2.0 GiB\n\
             \x20                              -> delete something, or use\n\
             \x20                                 /mnt/a-larger-disk/than/this"
        );
        assert_eq!(findings(200), findings(UNLIMITED));
    }

    #[test]
    fn in_a_narrow_terminal_the_last_column_stands_below_its_row() {
        assert_eq!(
            findings(40),
            "      CHECK       SUBJECT\n    MEASURED\n\
             FAIL  free bytes  vault on /v\n\
             \x20   0 B of 1.0 GiB free, and the next\n\
             \x20   step takes 2.0 GiB\n\
             \x20   -> delete something, or use\n\
             \x20      /mnt/a-larger-disk/than/this"
        );
    }

    const WARNING: &str = "warning: cannot read the pins on main: the store did not answer within ten seconds, and its \
                           copy in /vault/runs/grpo-30b/checkpoints/000000000100.a1/remotes/main.json is damaged";

    #[test]
    fn text_continues_under_itself_and_no_word_is_lost() {
        for width in [40, 80, 200] {
            let text = fit(WARNING, width);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&text), words(WARNING));
            for (number, line) in text.lines().enumerate() {
                let is_one_word = line.split_whitespace().count() == 1;
                assert!(line.len() <= width || is_one_word, "{width}: {line}");
                assert!(number == 0 || line.starts_with("         ") && !line.ends_with(' '), "{text}");
            }
        }
        assert_eq!(fit(WARNING, UNLIMITED), WARNING);
    }

    #[test]
    fn each_line_has_its_own_column() {
        let text =
            "error: one two three\n  hint: four five six\n   - seven eight nine ten\nplain words that go on";
        assert_eq!(
            fit(text, 18),
            "error: one two\n       three\n  hint: four five\n        six\n   - seven eight\n     nine ten\n\
             plain words that\n  go on"
        );
    }

    #[test]
    fn a_path_that_is_too_long_stays_whole() {
        let path = "/a/directory/with/a/name/longer/than/forty/columns";
        assert_eq!(
            fit(&format!("error: cannot read {path}: denied"), 40),
            format!("error: cannot read\n       {path}:\n       denied")
        );
    }

    #[test]
    fn wide_letters_and_colours_are_measured_as_they_are_shown() {
        assert_eq!(wrap("保存 検査 復元", 9, 0), "保存 検査\n復元");
        assert_eq!(wrap("\u{1b}[33m12\u{1b}[0m 34", 5, 0), "\u{1b}[33m12\u{1b}[0m 34");
    }

    #[test]
    fn a_narrow_terminal_does_without_alignment() {
        assert_eq!(wrap("0123456789: one two", 12, 12), "0123456789:\n  one two");
    }
}
