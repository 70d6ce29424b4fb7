//! Formats tables for people.

use console::measure_text_width;

use super::wrap::{UNLIMITED, wrap};

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
}
