//! Tables as text.

/// Lays out rows in columns, each as wide as its widest entry.
#[must_use]
pub fn columns(heads: &[&str], rows: &[Vec<String>], end: &str) -> String {
    let heads: Vec<_> = heads.iter().map(|head| (*head).to_owned()).collect();
    let all: Vec<_> = std::iter::once(&heads).chain(rows).collect();
    let width = |column: usize| {
        all.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<_> = (0..heads.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<_> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned()
    };
    format!(
        "{}{end}",
        all.iter().map(|row| line(row)).collect::<Vec<_>>().join("\n")
    )
}
