//! `--set workload.0.streams=16`: replaces one field of a scenario before it is parsed.

use toml::{Table, Value};

/// Applies one `path=value`. An element of the path is a key or an array index; the last key may be
/// new.
///
/// The value is TOML (`16`, `0.1`, `true`, `{ sd = "8ms" }`); other text is a string, so that
/// `network.0.down.rate=50mbit` needs no quotes.
pub(super) fn apply(table: &mut Table, setting: &str) -> Result<(), String> {
    let (path, value) = setting.split_once('=').ok_or("has no `=`; write field=value")?;
    let mut steps: Vec<&str> = path.trim().split('.').collect();
    let last = steps
        .pop()
        .filter(|step| !step.is_empty())
        .ok_or("names no field")?;
    let mut container = Container::Table(table);
    for step in steps {
        container = container.enter(step)?;
    }
    container.put(last, value_of(value.trim()))
}

enum Container<'a> {
    Table(&'a mut Table),
    Array(&'a mut Vec<Value>),
}

impl<'a> Container<'a> {
    fn enter(self, step: &str) -> Result<Self, String> {
        let value = match self {
            Self::Table(table) => table
                .get_mut(step)
                .ok_or_else(|| format!("there is no {step:?}"))?,
            Self::Array(array) => {
                let length = array.len();
                array
                    .get_mut(index(step, length)?)
                    .ok_or_else(|| out_of_range(step, length))?
            }
        };
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "every other value of TOML has no fields"
        )]
        match value {
            Value::Table(table) => Ok(Self::Table(table)),
            Value::Array(array) => Ok(Self::Array(array)),
            other => Err(format!("{step:?} is a {} and has no fields", other.type_str())),
        }
    }

    fn put(self, step: &str, value: Value) -> Result<(), String> {
        match self {
            Self::Table(table) => {
                table.insert(step.to_owned(), value);
            }
            Self::Array(array) => {
                let length = array.len();
                *array
                    .get_mut(index(step, length)?)
                    .ok_or_else(|| out_of_range(step, length))? = value;
            }
        }
        Ok(())
    }
}

fn value_of(text: &str) -> Value {
    format!("value = {text}")
        .parse::<Table>()
        .ok()
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

fn index(step: &str, length: usize) -> Result<usize, String> {
    step.parse()
        .map_err(|_| format!("{step:?} is not an index; there are {length}, counted from 0"))
}

fn out_of_range(step: &str, length: usize) -> String {
    format!("index {step} is out of range; there are {length}, counted from 0")
}
