//! Formats tables for people.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};

/// Creates a table with these headings; the columns in `right` are right-aligned.
pub(crate) fn table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().map(|heading| heading.to_uppercase()));
    let columns = table.column_count();
    for (index, column) in table.column_iter_mut().enumerate() {
        // Two spaces between columns, none at either edge.
        column.set_padding((0, if index + 1 == columns { 0 } else { 2 }));
        column.set_constraint(ColumnConstraint::ContentWidth);
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Renders the table, without trailing spaces.
pub(crate) fn text(table: &Table) -> String {
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_clean() {
        let mut steps = table(&["step", "where"], &[0]);
        steps.add_row(["100", "local"]);
        steps.add_row(["5", ""]);
        assert_eq!(text(&steps), "STEP  WHERE\n 100  local\n   5");
    }
}
