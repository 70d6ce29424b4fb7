//! Formats tables for people.

use console::measure_text_width;

use super::wrap::{UNLIMITED, wrap};

/// Columns between two columns of the table.
const GAP: usize = 2;
/// A last column that would get less than this stands below its row.
const MIN_LAST_WIDTH: usize = 30;
/// Indentation of a last column below its row.
const BELOW_INDENT: usize = 4;

/// Rows of cells below a heading. A cell of the last column may have several lines.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

/// Creates a table with these headings; the columns in `right` are right-aligned.
pub(crate) fn table(headings: &[&str], right: &[usize]) -> Table {
    Table {
        rows: vec![headings.iter().map(|heading| heading.to_uppercase()).collect()],
        right: right.to_vec(),
    }
}

/// Renders the table, without trailing spaces.
pub(crate) fn text(table: &Table) -> String {
    table.fitted(UNLIMITED)
}

impl Table {
    /// Adds a row.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Renders the table so that its last column ends at `width`, if the other columns leave room for it.
    pub(crate) fn fitted(&self, width: usize) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let widths: Vec<usize> = (0..columns).map(|column| self.width(column)).collect();
        let last = columns.saturating_sub(1);
        let begin = widths.iter().take(last).map(|width| width + GAP).sum::<usize>();
        let is_below = begin + widths.last().copied().unwrap_or_default() > width
            && width.saturating_sub(begin) < MIN_LAST_WIDTH;
        let indent = if is_below { BELOW_INDENT } else { begin };
        let mut lines = Vec::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate();
            let mut cells = cells.map(|(column, (cell, width))| self.aligned(column, cell, *width));
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

    /// Returns the width of the widest line of a column.
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let lines = cells.flat_map(|cell| cell.lines());
        lines.map(measure_text_width).max().unwrap_or_default()
    }

    /// Returns a cell with the spaces that its column needs.
    fn aligned(&self, column: usize, cell: &str, width: usize) -> String {
        let space = " ".repeat(width.saturating_sub(measure_text_width(cell)));
        if self.right.contains(&column) { space + cell } else { cell.to_owned() + &space }
    }
}

/// Returns the indentation under the text of a remedy.
fn hanging(line: &str) -> usize {
    if line.starts_with("-> ") { 3 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Table {
        let mut findings = table(&["", "check", "subject", "measured"], &[]);
        findings.add_row([
            "FAIL",
            "free bytes",
            "vault on /v",
            "0 B of 1.0 GiB free, and the next step takes 2.0 GiB\n-> delete something, or use /mnt/a-larger-disk/than/this",
        ]);
        findings
    }

    #[test]
    fn columns_line_up_and_lines_end_clean() {
        let mut steps = table(&["step", "where"], &[0]);
        steps.add_row(["100", "local"]);
        steps.add_row(["5", ""]);
        steps.add_row(["7", "保存"]);
        assert_eq!(text(&steps), "STEP  WHERE\n 100  local\n   5\n   7  保存");
    }

    #[test]
    fn the_last_column_wraps_under_itself() {
        assert_eq!(
            findings().fitted(70),
            "      CHECK       SUBJECT      MEASURED\n\
             FAIL  free bytes  vault on /v  0 B of 1.0 GiB free, and the next step\n\
             \x20                              takes 2.0 GiB\n\
             \x20                              -> delete something, or use\n\
             \x20                                 /mnt/a-larger-disk/than/this"
        );
        assert_eq!(findings().fitted(200), text(&findings()));
    }

    #[test]
    fn in_a_narrow_terminal_the_last_column_stands_below_its_row() {
        assert_eq!(
            findings().fitted(40),
            "      CHECK       SUBJECT\n    MEASURED\n\
             FAIL  free bytes  vault on /v\n\
             \x20   0 B of 1.0 GiB free, and the next\n\
             \x20   step takes 2.0 GiB\n\
             \x20   -> delete something, or use\n\
             \x20      /mnt/a-larger-disk/than/this"
        );
    }
}
