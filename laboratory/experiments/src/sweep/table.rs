//! Rows as a table, in CSV for spreadsheets and in Parquet for large analyses, with equal content.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::row::{Cell, Row};

/// Type of all cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Booleans.
    Bool,
    /// Integers.
    Int,
    /// Numbers.
    Float,
    /// Text, or mixed values.
    Text,
}

/// Rows with the same columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Names and types of the columns, in the order of their first occurrence.
    pub columns: Vec<(String, Kind)>,
    /// Rows with one cell per column, of the column's type or null.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates the table of these rows. Missing cells are null.
    #[must_use]
    pub fn of<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> Self {
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        let mut columns: Vec<(String, Option<Kind>)> = Vec::new();
        for (name, cell) in rows.clone().flat_map(|row| &row.0) {
            let place = *places.entry(name).or_insert_with(|| {
                columns.push((name.clone(), None));
                columns.len() - 1
            });
            columns[place].1 = common_type(columns[place].1, kind(cell));
        }
        let columns: Vec<(String, Kind)> = columns
            .into_iter()
            .map(|(name, kind)| (name, kind.unwrap_or(Kind::Text)))
            .collect();
        let rows = rows.map(|row| {
            let mut cells = vec![Cell::Null; columns.len()];
            for (name, cell) in &row.0 {
                let place = places[name.as_str()];
                cells[place] = converted(cell, columns[place].1);
            }
            cells
        });
        Self {
            rows: rows.collect(),
            columns: columns.clone(),
        }
    }

    /// Writes CSV with a header line (RFC 4180): cells with a comma, a quote or a line end are
    /// quoted, and so is the empty text; null is empty.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| quoted(name)).collect();
        let mut csv = names.join(",") + "\n";
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(csv_cell).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(csv, "{}", cells.join(","));
        }
        csv
    }

    /// Writes one Parquet file with row groups of 100,000 rows; every column is optional.
    ///
    /// # Errors
    /// When the encoder fails; no such case is known for these types.
    pub fn to_parquet(&self) -> Result<Vec<u8>, String> {
        self.encode().map_err(|error| error.to_string())
    }

    fn encode(&self) -> Result<Vec<u8>, ParquetError> {
        let fields = self.columns.iter().map(|(name, kind)| {
            let builder =
                Type::primitive_type_builder(name, physical(*kind)).with_repetition(Repetition::OPTIONAL);
            let builder = if *kind == Kind::Text {
                builder.with_logical_type(Some(LogicalType::String))
            } else {
                builder
            };
            builder.build().map(Arc::new)
        });
        let fields = fields.collect::<Result<Vec<_>, _>>()?;
        let schema = Type::group_type_builder("sweep").with_fields(fields).build()?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by("hawser".to_owned())
            .build();
        let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
        for rows in self.rows.chunks(GROUP) {
            let mut group = writer.next_row_group()?;
            for (n, (_, kind)) in self.columns.iter().enumerate() {
                write_column(&mut group, *kind, rows.iter().map(|row| &row[n]))?;
            }
            group.close()?;
        }
        writer.into_inner()
    }
}

fn write_column<'a>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    kind: Kind,
    cells: impl Iterator<Item = &'a Cell> + Clone,
) -> Result<(), ParquetError> {
    let levels: Vec<i16> = cells.clone().map(|cell| i16::from(*cell != Cell::Null)).collect();
    match kind {
        Kind::Bool => {
            let pick = |cell: &Cell| {
                if let Cell::Bool(value) = cell {
                    Some(*value)
                } else {
                    None
                }
            };
            write_values::<BoolType>(group, &cells.filter_map(pick).collect::<Vec<_>>(), &levels)
        }
        Kind::Int => {
            let pick = |cell: &Cell| {
                if let Cell::Int(value) = cell {
                    Some(*value)
                } else {
                    None
                }
            };
            write_values::<Int64Type>(group, &cells.filter_map(pick).collect::<Vec<_>>(), &levels)
        }
        Kind::Float => {
            let pick = |cell: &Cell| {
                if let Cell::Float(value) = cell {
                    Some(*value)
                } else {
                    None
                }
            };
            write_values::<DoubleType>(group, &cells.filter_map(pick).collect::<Vec<_>>(), &levels)
        }
        Kind::Text => {
            let pick = |cell: &Cell| match cell {
                Cell::Text(text) => Some(ByteArray::from(text.as_str())),
                Cell::Null | Cell::Bool(_) | Cell::Int(_) | Cell::Float(_) => None,
            };
            write_values::<ByteArrayType>(group, &cells.filter_map(pick).collect::<Vec<_>>(), &levels)
        }
    }
}

fn write_values<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: &[T::T],
    levels: &[i16],
) -> Result<(), ParquetError> {
    if let Some(mut column) = group.next_column()? {
        column.typed::<T>().write_batch(values, Some(levels), None)?;
        column.close()?;
    }
    Ok(())
}

const fn physical(kind: Kind) -> Physical {
    match kind {
        Kind::Bool => Physical::BOOLEAN,
        Kind::Int => Physical::INT64,
        Kind::Float => Physical::DOUBLE,
        Kind::Text => Physical::BYTE_ARRAY,
    }
}

const fn kind(cell: &Cell) -> Option<Kind> {
    match cell {
        Cell::Null => None,
        Cell::Bool(_) => Some(Kind::Bool),
        Cell::Int(_) => Some(Kind::Int),
        Cell::Float(_) => Some(Kind::Float),
        Cell::Text(_) => Some(Kind::Text),
    }
}

/// Returns the common type: integers and numbers are numbers, other mixtures are text.
fn common_type(a: Option<Kind>, b: Option<Kind>) -> Option<Kind> {
    match (a, b) {
        (None, kind) | (kind, None) => kind,
        (Some(a), Some(b)) if a == b => Some(a),
        (Some(Kind::Int | Kind::Float), Some(Kind::Int | Kind::Float)) => Some(Kind::Float),
        (Some(_), Some(_)) => Some(Kind::Text),
    }
}

fn converted(cell: &Cell, kind: Kind) -> Cell {
    match (cell, kind) {
        (Cell::Null, _) => Cell::Null,
        (Cell::Int(value), Kind::Float) => Cell::Float(*value as f64),
        (cell, Kind::Text) => Cell::Text(text(cell)),
        (cell, Kind::Bool | Kind::Int | Kind::Float) => cell.clone(),
    }
}

/// Returns the shortest text that parses to the same value.
fn text(cell: &Cell) -> String {
    match cell {
        Cell::Null => String::new(),
        Cell::Bool(value) => value.to_string(),
        Cell::Int(value) => value.to_string(),
        Cell::Float(value) => format!("{value:?}"),
        Cell::Text(text) => text.clone(),
    }
}

fn csv_cell(cell: &Cell) -> String {
    match cell {
        Cell::Null => String::new(),
        // An empty text differs from a missing value.
        Cell::Text(text) if text.is_empty() => "\"\"".to_owned(),
        Cell::Bool(_) | Cell::Int(_) | Cell::Float(_) | Cell::Text(_) => quoted(&text(cell)),
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Rows per group: large enough to compress well, small enough to be read one group at a time.
/// Source: our choice; some ten megabytes with a hundred columns.
const GROUP: usize = 100_000;
