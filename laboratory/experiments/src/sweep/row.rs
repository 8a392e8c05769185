//! Results of one run.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Value of a table cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// Missing value.
    Null,
    /// Boolean.
    Bool(bool),
    /// Integer.
    Int(i64),
    /// A finite number.
    Float(f64),
    /// Text.
    Text(String),
}

impl Cell {
    /// Returns the value of a count or a number.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Self::Int(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            Self::Null | Self::Bool(_) | Self::Text(_) => None,
        }
    }

    /// Returns the text as in a scenario; empty for null.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(value) => value.clone(),
        }
    }
}

/// Named values, in the order of their columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row(pub Vec<(String, Cell)>);

impl Row {
    /// Adds a column.
    pub fn push(&mut self, name: impl Into<String>, cell: impl Into<Cell>) {
        self.0.push((name.into(), cell.into()));
    }

    /// Adds the columns of a report: its fields by path, such as `networks.lte.down.bytes`, without
    /// `series`.
    #[must_use]
    pub fn from_json(report: &Value) -> Self {
        let mut row = Self::default();
        row.flatten(String::new(), report);
        row
    }

    fn flatten(&mut self, path: String, value: &Value) {
        let below = |step: &str| {
            if path.is_empty() {
                step.to_owned()
            } else {
                format!("{path}.{step}")
            }
        };
        match value {
            Value::Object(fields) => {
                for (name, value) in fields.iter().filter(|(name, _)| *name != "series") {
                    self.flatten(below(name), value);
                }
            }
            Value::Array(values) => {
                for (n, value) in values.iter().enumerate() {
                    self.flatten(below(&n.to_string()), value);
                }
            }
            Value::Null => self.push(path, Cell::Null),
            Value::Bool(value) => self.push(path, Cell::Bool(*value)),
            Value::Number(number) => {
                let cell = number
                    .as_i64()
                    .map(Cell::Int)
                    .or_else(|| number.as_f64().map(Cell::from));
                self.push(path, cell.unwrap_or(Cell::Null));
            }
            Value::String(text) => self.push(path, Cell::Text(text.clone())),
        }
    }
}

impl From<f64> for Cell {
    /// Values that are not finite become null.
    fn from(value: f64) -> Self {
        if value.is_finite() {
            Self::Float(value)
        } else {
            Self::Null
        }
    }
}

impl From<i64> for Cell {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&toml::Value> for Cell {
    /// Returns the value of an axis; a table or an array as TOML.
    fn from(value: &toml::Value) -> Self {
        match value {
            toml::Value::Integer(value) => Self::Int(*value),
            toml::Value::Float(value) => Self::from(*value),
            toml::Value::Boolean(value) => Self::Bool(*value),
            toml::Value::String(text) => Self::Text(text.clone()),
            toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => {
                Self::Text(value.to_string())
            }
        }
    }
}
